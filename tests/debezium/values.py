"""Random documents for messages: every BSON type, many forms of each, and ten kinds of `_id`."""

import struct
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import bson
from bson import (
    Binary,
    Code,
    DatetimeMS,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from bson.raw_bson import RawBSONDocument

DOUBLES = (
    0.0, -0.0, 1.0, 0.1, -1.5, 3.14159, 1e7, 9999999.0, 12345678.9, 1e20, 1.5e300, 1e-3, 9.99e-4,
    1e-7, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 123456789012345680.0, 2.0**53,
    100.0, 2e-3, 1e21, 1e22, 1e23, 8.41e21, 2.0e-3, 4.35, 0.3, 1 / 3, 9007199254740993.0,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", "a", "O'Brien \"the\" 2nd", "back\\slash", "sl/ash", "tab\tnew\nline\rfeed\f\b",
    "\x00\x01\x1f", "\x7f\x80\x9f\xa0\xad", "ümläut", "日本語", "😀", "\u2028\u2029", "<b>&amp;'",
    "\ufeff", "e\u0301", "\u0600\u200b\u202e\ue000\ufffd\uffff", "null", "${x}", "𐍈 𐍉",
)  # fmt: skip
DATES = (
    0, 1, -1, 999, 1_600_000_000_000, 1_600_000_000_120, 1_600_000_000_001, 253_402_300_799_999,
    253_402_300_800_000, -62_135_596_800_000, 1 << 62, -(1 << 62), 500,
)  # fmt: skip
"""Values of three types, among them those that are written in an unusual way."""
_DECIMALS = (
    "0", "-0", "1.10", "1E+3", "1E-7", "NaN", "-NaN", "Infinity", "-Infinity", "123456789.5",
    "9.999999999999999999999999999999999E+6144", "0E-6176", "12E+5", "0.000001", "1E-6176",
)  # fmt: skip
_RAW = (
    (0x06, b""),  # undefined
    (0x0E, b'\x04\0\0\0sy"\0'),  # a symbol
    (0x0C, b"\x05\0\0\0db.c\0" + bytes(range(12))),  # a DBPointer
)
NAMES = ("a", "b.c", "with space", "qu'o\"te", "😀", "$d", "", "é", "x/y", "n\\m", "0", "null")
"""Names of fields."""
COLLECTIONS = (
    "orders",
    "p.w%q",
    "two words",
    "O'Brien",
    'dou"ble',
    "Ünïcode",
    "smile 😀",
    "-x_y.Z",
)
"""Names of collections."""


def value(chance: Random, depth: int = 3) -> Any:
    """Return a value of any type that pymongo writes."""
    return chance.choice(_SCALARS if depth == 0 else (*_SCALARS, *_NESTED))(chance, depth)


_SCALARS: tuple[Callable[[Random, int], Any], ...] = (
    *[lambda c, _: c.choice(DOUBLES)] * 2,
    lambda c, _: c.uniform(-1, 1) * 10.0 ** c.randrange(-12, 25),
    *[lambda c, _: c.choice(TEXTS)] * 2,
    lambda c, _: Binary(c.randbytes(c.randrange(9)), c.choice((0, 1, 2, 3, 5, 6, 128))),
    lambda c, _: Binary(UUID(int=c.getrandbits(128)).bytes, 4),
    lambda c, _: object_id(c),
    lambda c, _: c.random() < 0.5,
    lambda c, _: DatetimeMS(c.choice(DATES)),
    lambda _, __: None,
    lambda c, _: Regex(c.choice(("^a", 'q"/\\d+', "", "é😀")), c.choice(("", "i", "imsx", "xs"))),
    lambda c, _: Code(c.choice(("function() { return 'a\"'; }", ""))),
    lambda c, _: Code("f(x)", {"x": value(c, 0)}),
    lambda c, _: c.choice((0, -1, 7, 2**31 - 1, -(2**31))),
    lambda c, _: Int64(c.choice((0, -1, 5, 2**40, 2**63 - 1, -(2**63), 2**53 + 1))),
    lambda c, _: Decimal128(c.choice(_DECIMALS)),
    lambda c, _: Timestamp(c.choice((0, 1_600_000_000, 2**32 - 1)), c.choice((0, 1, 2**32 - 1))),
    lambda c, _: c.choice((MinKey(), MaxKey())),
    lambda c, _: DBRef("other", object_id(c), c.choice((None, "db"))),
)
_NESTED: tuple[Callable[[Random, int], Any], ...] = (
    lambda _, __: {},
    lambda _, __: [],
    lambda c, depth: [value(c, depth - 1) for _ in range(c.randrange(1, 4))],
    lambda c, depth: fields(c, depth - 1),
)


def fields(chance: Random, depth: int = 2) -> dict[str, Any]:
    """Return fields with some of NAMES."""
    names = chance.sample(NAMES, chance.randrange(1, 5))
    return {name: value(chance, depth) for name in names}


def document(chance: Random, identifier: Any, k: int) -> RawBSONDocument:
    """Return a document, a fifth of them with a value of a type that pymongo cannot write."""
    names = [name for name in NAMES if not name.startswith("$")]
    fields = {name: value(chance) for name in chance.sample(names, chance.randrange(1, 6))}
    body = bson.encode({"_id": identifier, "k": k, **fields})[4:-1]
    if chance.random() < 0.2:
        kind, data = chance.choice(_RAW)
        body += bytes((kind,)) + b"raw\0" + data
    return RawBSONDocument(struct.pack("<i", len(body) + 5) + body + b"\0")


def identifier(chance: Random, number: int) -> Any:
    """Return an `_id` of one of many types; `number` makes it unlike any other."""
    makers = (
        lambda: number,
        lambda: Int64(2**40 + number),
        lambda: number + chance.choice((0.5, 0.1, 1e-9)),
        lambda: 1e20 * number,
        lambda: f"id {number} {chance.choice(TEXTS[:-1]).replace(chr(0), '')}",
        lambda: object_id(chance),
        lambda: Binary(UUID(int=chance.getrandbits(128)).bytes, 4),
        lambda: Binary(struct.pack("<i", number), chance.choice((0, 5, 128))),
        lambda: {"a": number, "b": {"c": [1, "x"], "d": None}, "e": DatetimeMS(number)},
        lambda: DatetimeMS(1_577_836_800_000 + number * (1, 10, 1000)[number % 3]),
        lambda: DatetimeMS(-number * 1000),
        lambda: DatetimeMS(253_402_300_800_000 + number),
        lambda: Timestamp(number, 3),
        lambda: Decimal128(f"-{number}.10E+{chance.randrange(9)}"),
    )
    return chance.choice(makers)()


ODD_IDENTIFIERS = (True, False, None, MinKey(), MaxKey(), "", {}, float("nan"), float("inf"),
                   Decimal128("-Infinity"), Code("f"), Int64(-(2**63)))  # fmt: skip
"""Values that are the `_id` of one document each."""


def object_id(chance: Random) -> ObjectId:
    """Return an ObjectId that the seed determines."""
    return ObjectId(chance.randbytes(12))
