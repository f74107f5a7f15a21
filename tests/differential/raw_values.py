"""Random documents and updates in BSON that drivers never write, and stages that look at them."""

import struct
from collections.abc import Callable
from random import Random
from typing import Any

from bson import Binary, Code, Decimal128, Int64, encode
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument

LENIENT: CodecOptions[dict[str, Any]] = CodecOptions(
    unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
"""Decodes these documents too, though not to every detail."""

_DOCUMENT, _ARRAY = 3, 4
_NAMES = ("a", "b", "c")
_IRREGULAR = (("1", "0"), ("0", "0"), ("a", "b", "c"), ("",), ("5",), ("00", "01"), ("0", "2"))
"""Names of arrays' elements other than 0, 1, 2."""
_NOT_CANONICAL = tuple(
    struct.pack("<QQ", low, high)
    for low, high in (
        (0xFFFFFFFFFFFFFFFF, 0x3041FFFFFFFFFFFF),  # a coefficient beyond 10**34
        (0x378D8E6400000000, 0x3041ED09BEAD87C0),  # 10**34
        (1, 0x6C10000000000001),  # the form for large coefficients
        (7, 0x7C00000000000001),  # a NaN with a payload
    )
)
"""Decimal128 values that no arithmetic yields."""


def _string(text: bytes) -> bytes:
    return struct.pack("<i", len(text) + 1) + text + b"\0"


def _framed(body: bytes) -> bytes:
    return struct.pack("<i", len(body) + 5) + body + b"\0"


Value = tuple[int, bytes]
"""A value's BSON type and its bytes."""


def _known(value: Any) -> Value:
    """Return a value that drivers write."""
    data = encode({"": value})
    return data[4], data[6:-1]


def _element(name: str, value: Value) -> bytes:
    return bytes((value[0],)) + name.encode() + b"\0" + value[1]


def _document(elements: list[tuple[str, Value]], kind: int = _DOCUMENT) -> Value:
    return kind, _framed(b"".join(_element(name, value) for name, value in elements))


_SCALARS: tuple[Callable[[Random], Value], ...] = (
    lambda c: _known(c.randrange(-2, 5)),
    lambda c: _known(c.choice(("a", "b", ""))),
    lambda _: _known(None),
    lambda _: (0x06, b""),  # undefined
    lambda c: (0x0E, _string(c.choice((b"a", b"ab")))),  # a symbol
    lambda c: (0x0C, _string(b"c") + c.randbytes(12)),  # a DBPointer
    lambda _: _known(Code("f")),
    lambda c: _known(Code("f", {"a": c.randrange(3)})),
    lambda c: (0x02, _string(c.choice((b"\xff", b"a\xc3", b"\xed\xa0\x80", b"a\0b")))),
    lambda c: (0x13, c.choice(_NOT_CANONICAL)),
    lambda c: (0x13, c.choice(_NOT_CANONICAL)),
    lambda c: (0x01, struct.pack("<Q", 0x7FF8000000000000 + c.randrange(3))),  # NaN
    lambda _: (0x09, struct.pack("<q", 1 << 62)),  # a date after the year 9999
    lambda c: _known(Binary(b"ab", c.choice((2, 3, 9)))),
    lambda _: (0x0B, b"^a\0xmi\0"),  # options that are not sorted
)


def _value(chance: Random, depth: int = 2) -> Value:
    kind = chance.random()
    if not depth or kind < 0.45:
        return chance.choice(_SCALARS)(chance)
    if kind < 0.8:
        names = chance.choice(_IRREGULAR)
        return _document([(name, _value(chance, depth - 1)) for name in names], _ARRAY)
    names = tuple(chance.choices(_NAMES, k=3))  # some are repeated
    return _document([(name, _value(chance, depth - 1)) for name in names])


def document(chance: Random, number: int) -> tuple[RawBSONDocument, Any]:
    """Return a document and its ``_id``, for which ``number`` makes it unlike others.

    Its fields have the names of ``values.document``.
    """
    key = _key(chance, number)
    elements = [
        ("_id", _known(key)),
        ("k", _known(chance.randrange(60)) if chance.random() < 0.9 else _value(chance, 0)),
        (
            "n",
            _value(chance, 1) if chance.random() < 0.7 else (0x13, chance.choice(_NOT_CANONICAL)),
        ),
        ("tags", _document([(n, _value(chance, 1)) for n in chance.choice(_IRREGULAR)], _ARRAY)),
        ("sub", _document([("a", _value(chance)), ("b", _document([("c", _value(chance, 1))]))])),
        ("any", _value(chance)),
    ]
    if chance.random() < 0.3:
        elements.append((chance.choice(("n", "any", "tags", "sub")), _value(chance, 1)))
    return RawBSONDocument(_document(elements)[1]), key


def _key(chance: Random, number: int) -> Any:
    own = ("n", _known(Int64(number)))
    kind = chance.random()
    if kind < 0.5:
        return number
    if kind < 0.6:
        return Decimal128.from_bid(struct.pack("<QQ", number, 0x3041FFFFFFFFFFFF))
    return RawBSONDocument(_document([(chance.choice(_NAMES), _value(chance)), own])[1])


def update(chance: Random) -> Any:
    """Return an update by operators or by a pipeline."""
    path = chance.choice(("n", "sub.a", "sub.b.c", "any", "any.a", "tags", "tags.1", "any.0", "f"))
    kind = chance.random()
    if kind < 0.6:
        return _operator("$set", [(path, _value(chance))])
    if kind < 0.8:
        return _operator("$push", [(chance.choice(("tags", "any", "sub.a")), _value(chance, 1))])
    return [_operator("$set", [(path, _document([("$literal", _value(chance))]))])]


def _operator(name: str, elements: list[tuple[str, Value]]) -> RawBSONDocument:
    return RawBSONDocument(_document([(name, _document(elements))])[1])


def stage(chance: Random) -> dict[str, Any]:
    """Return a stage that looks into these documents."""
    below = chance.choice(("", "", "", "", ".a", ".b", ".0", ".1", ".a.b", ".0.a", ".5"))
    path = chance.choice(_PATHS) + below
    kind = chance.random()
    if kind < 0.04:  # the error's message shows the value
        return {"$set": {"number": {"$toInt": "$" + path}}}
    if kind < 0.15:
        return {"$project": {path: chance.randrange(2), **({"_id": 1} if kind < 0.07 else {})}}
    if kind < 0.22:
        return {"$unset": [path]}
    return {"$match": {path: chance.choice(_CONDITIONS)(chance)}}


_PATHS = (
    "fullDocument.n",
    "fullDocument.any",
    "fullDocument.tags",
    "fullDocument.sub.a",
    "fullDocument.sub.b.c",
    "documentKey._id",
    "documentKey._id.a",
    "updateDescription.updatedFields.any",
)
_CONDITIONS: tuple[Callable[[Random], Any], ...] = (
    lambda _: None,
    lambda _: {"$ne": None},
    lambda c: {"$exists": c.random() < 0.5},
    lambda c: c.randrange(3),
    lambda c: {"$gte": c.randrange(3)},
    lambda c: {"$lt": Decimal128(str(c.randrange(3)))},
    lambda c: {"$in": [c.randrange(3), "a", Decimal128("0")]},
    lambda c: {"$nin": [c.randrange(3), "ab"]},
    lambda c: Decimal128.from_bid(c.choice(_NOT_CANONICAL)),
    lambda c: {"$type": c.choice(("undefined", "symbol", "array", "string", "decimal", 12, 15))},
    lambda _: {"$gte": "a"},
    lambda _: Code("f"),
)
