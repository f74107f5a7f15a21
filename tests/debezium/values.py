"""Random documents for messages: every BSON type, many forms of each, and ten kinds of `_id`."""

import struct
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
    kinds = 24 if depth else 20
    match chance.randrange(kinds):
        case 0 | 1:
            return chance.choice(DOUBLES)
        case 2:
            return chance.uniform(-1, 1) * 10.0 ** chance.randrange(-12, 25)
        case 3 | 4:
            return chance.choice(TEXTS)
        case 5:
            return Binary(
                chance.randbytes(chance.randrange(9)), chance.choice((0, 1, 2, 3, 5, 6, 128))
            )
        case 6:
            return Binary(UUID(int=chance.getrandbits(128)).bytes, 4)
        case 7:
            return object_id(chance)
        case 8:
            return chance.random() < 0.5
        case 9:
            return DatetimeMS(chance.choice(DATES))
        case 10:
            return None
        case 11:
            return Regex(
                chance.choice(("^a", 'q"/\\d+', "", "é😀")), chance.choice(("", "i", "imsx", "xs"))
            )
        case 12:
            return Code(chance.choice(("function() { return 'a\"'; }", "")))
        case 13:
            return Code("f(x)", {"x": value(chance, 0)})
        case 14:
            return chance.choice((0, -1, 7, 2**31 - 1, -(2**31)))
        case 15:
            return Int64(chance.choice((0, -1, 5, 2**40, 2**63 - 1, -(2**63), 2**53 + 1)))
        case 16:
            return Decimal128(chance.choice(_DECIMALS))
        case 17:
            return Timestamp(
                chance.choice((0, 1_600_000_000, 2**32 - 1)), chance.choice((0, 1, 2**32 - 1))
            )
        case 18:
            return chance.choice((MinKey(), MaxKey()))
        case 19:
            return DBRef("other", object_id(chance), chance.choice((None, "db")))
        case 20:
            return {}
        case 21:
            return []
        case 22:
            return [value(chance, depth - 1) for _ in range(chance.randrange(1, 4))]
        case _:
            return fields(chance, depth - 1)


def fields(chance: Random, depth: int = 2) -> dict[str, Any]:
    """Return fields with some of NAMES."""
    names = chance.sample(NAMES, chance.randrange(1, 5))
    return {name: value(chance, depth) for name in names}


def document(chance: Random, identifier: Any, k: int) -> RawBSONDocument:
    """Return a document, a fifth of them with a value of a type that pymongo cannot write."""
    names = [name for name in NAMES if not name.startswith("$")]
    made = {name: value(chance) for name in chance.sample(names, chance.randrange(1, 6))}
    body = bson.encode({"_id": identifier, "k": k, **made})[4:-1]
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
