"""BSON values on raw bytes: numbers, and keys that are equal where MongoDB compares as equal.

Source: bsonspec.org; MongoDB's comparison order and equality (docs/protocol.md#filters).
"""

from collections.abc import Hashable
from decimal import Decimal
from struct import Struct
from typing import Final

from shard_client.bson.values import (
    CONTAINERS,
    DECIMAL,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    NULL,
    STRING,
    SYMBOL,
    UNDEFINED,
    MalformedValueError,
    value_end,
)

MISSING: Final = 0x00

NUMBERS: Final = frozenset({DOUBLE, INT32, INT64, DECIMAL})
STRINGS: Final = frozenset({STRING, SYMBOL})

NULL_KEY: Final = (NULL,)
"""The key of null, and of missing fields, which equal null in a query."""

UNDEFINED_KEY: Final = (UNDEFINED,)
"""The key of undefined, which equals null in a query until MongoDB 8.0."""

NAN_KEY: Final = (DOUBLE, b"NaN")
"""The key of every NaN: in a query they are equal."""

_MOST_DEPTH: Final = 300
"""More than servers allow by any setting (``maxBSONDepth``, 250 at most)."""

unpack_length = Struct("<I").unpack_from
pack_length = Struct("<I").pack
_double = Struct("<d").unpack_from
unpack_int32 = Struct("<i").unpack_from
_int64 = Struct("<q").unpack_from
_two_uint64 = Struct("<QQ").unpack_from

_MOST_COEFFICIENT: Final = 10**34
_BIAS: Final = 6176
"""Of decimals: the coefficient is less, and the exponent is stored with this added."""


def number(data: bytes, kind: int, start: int) -> Hashable:
    """Return the number at ``start`` as one of Python's, or NAN_KEY.

    Python compares its numbers exactly across their types, as MongoDB does.
    """
    if kind == INT32:
        return int(unpack_int32(data, start)[0])
    if kind == INT64:
        return int(_int64(data, start)[0])
    if kind == DOUBLE:
        value: float = _double(data, start)[0]
        return value if value == value else NAN_KEY
    return _decimal(data, start)


def _decimal(data: bytes, start: int) -> Hashable:
    """Return the decimal at ``start``, exactly, or NAN_KEY.

    Source: IEEE 754-2008, the binary encoding of decimal128. Every 16 bytes are a decimal: a
    coefficient that is too large counts as 0, and the rest of a NaN or an infinity does not count.
    """
    low, high = _two_uint64(data, start)
    sign = "-" if high >> 63 else ""
    if high >> 58 & 0x1F == 0x1F:
        return NAN_KEY
    if high >> 58 & 0x1F == 0x1E:
        return Decimal(sign + "Infinity")
    if high >> 61 & 3 == 3:
        return 0  # the coefficients of this form are too large
    coefficient = (high & 0x1_FFFF_FFFF_FFFF) << 64 | low
    if coefficient >= _MOST_COEFFICIENT:
        return 0
    exponent = (high >> 49 & 0x3FFF) - _BIAS
    return Decimal(f"{sign}{coefficient}E{exponent}")


def key(data: bytes, kind: int, start: int, end: int) -> Hashable:
    """Return the key of a value: two keys are equal if a query's equality holds for the values.

    Numbers of any types are equal by value, a symbol equals a string, a missing field equals null.
    Inside documents and arrays null and missing differ.
    """
    if kind == STRING:
        return data[start + 4 : end - 1]
    if kind in NUMBERS:
        return number(data, kind, start)
    if kind in (NULL, MISSING):
        return NULL_KEY
    return _inner_key(data, kind, start, end, 0)


def is_nested(value_key: Hashable) -> bool:
    """Return whether a key is that of a document or an array."""
    return isinstance(value_key, tuple) and value_key[0] in CONTAINERS


def _inner_key(data: bytes, kind: int, start: int, end: int, depth: int) -> Hashable:
    if kind in NUMBERS:
        return number(data, kind, start)
    if kind in STRINGS:
        return data[start + 4 : end - 1]
    if kind not in CONTAINERS:
        return (kind, data[start:end]) if end > start else (kind,)
    if depth == _MOST_DEPTH:
        raise MalformedValueError("documents nest too deeply")
    parts: list[Hashable] = [kind]
    position = start + 4
    while (inner := data[position]) != 0:
        stop = data.index(0, position + 1)
        inner_end = value_end(data, inner, stop + 1)
        if kind == DOCUMENT:
            parts.append(data[position + 1 : stop])
        parts.append(_inner_key(data, inner, stop + 1, inner_end, depth + 1))
        position = inner_end
    return tuple(parts)
