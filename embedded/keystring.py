"""KeyString, version 1: BSON values as bytes that compare as the values do.

Resume tokens are made of it (docs/protocol.md, section 3). Bits that the order does not need but
that tell equal values apart (an int from a double, say) go to the type bits.
"""

import re
import struct
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from math import copysign
from typing import Any, Final

from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from embedded.keystring_numbers import (
    decimal_zero_kind,
    encode_decimal,
    encode_double,
    encode_integer,
    stored_exponent,
)

MIN_KEY: Final = 10
NULLISH: Final = 20
NUMERIC: Final = 30
STRING: Final = 60
OBJECT: Final = 70
ARRAY: Final = 80
BIN_DATA: Final = 90
OBJECT_ID: Final = 100
FALSE: Final = 110
TRUE: Final = 111
DATE: Final = 120
TIMESTAMP: Final = 130
REGEX: Final = 140
CODE: Final = 160
CODE_WITH_SCOPE: Final = 170
MAX_KEY: Final = 240
END: Final = 4

_INT_BITS: Final = (0, 0)
_LONG_BITS: Final = (0, 1)
_DOUBLE_BITS: Final = (1, 0)
_DECIMAL_BITS: Final = (1, 1)
_MINUS_ZERO_BITS: Final = (1, 1, 0, 0, 0)
_DECIMAL_ZERO_PREFIX: Final = 0x1A


class KeyStringBuilder:
    """Build one key from values, all ascending: ``append`` each, then ``key`` and ``type_bits``."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bits: list[int] = []

    def append(self, value: Any) -> None:
        """Add one BSON value. Raises TypeError for what is no BSON value."""
        if isinstance(value, bool):
            self._parts.append(bytes((TRUE if value else FALSE,)))
        elif isinstance(value, int):
            is_long = isinstance(value, Int64) or not -(1 << 31) <= value < 1 << 31
            self._bits += _LONG_BITS if is_long else _INT_BITS
            self._parts.append(encode_integer(value))
        elif isinstance(value, str) and not isinstance(value, Code):
            self._bits.append(0)
            self._parts.append(bytes((STRING,)) + _c_string(value))
        elif isinstance(value, ObjectId):
            self._parts.append(bytes((OBJECT_ID,)) + value.binary)
        elif isinstance(value, Mapping):
            self._parts.append(bytes((OBJECT,)))
            self._append_fields(value)
        elif isinstance(value, (bytes, uuid.UUID)):
            self._parts.append(_binary(value))
        elif isinstance(value, (list, tuple)):
            self._parts.append(bytes((ARRAY,)))
            for item in value:
                self.append(item)
            self._parts.append(b"\x00")
        else:
            self._append_rarer(value)

    def _append_rarer(self, value: Any) -> None:
        if value is None:
            self._parts.append(bytes((NULLISH,)))
        elif isinstance(value, Timestamp):
            self._parts.append(struct.pack(">BII", TIMESTAMP, value.time, value.inc))
        elif isinstance(value, float):
            minus_zero = value == 0.0 and copysign(1.0, value) < 0
            self._bits += _MINUS_ZERO_BITS if minus_zero else _DOUBLE_BITS
            self._parts.append(encode_double(value))
        elif isinstance(value, (datetime, DatetimeMS)):
            millis = int(value) if isinstance(value, DatetimeMS) else int(DatetimeMS(value))
            self._parts.append(struct.pack(">BQ", DATE, (millis + (1 << 63)) & ((1 << 64) - 1)))
        elif isinstance(value, Decimal128):
            self._append_decimal(value.to_decimal())
        elif isinstance(value, (Regex, re.Pattern)):
            self._parts.append(_regex(value))
        elif isinstance(value, Code):
            self._append_code(value)
        elif isinstance(value, DBRef):
            self.append(value.as_doc())
        elif isinstance(value, MinKey):
            self._parts.append(bytes((MIN_KEY,)))
        elif isinstance(value, MaxKey):
            self._parts.append(bytes((MAX_KEY,)))
        else:
            raise TypeError(f"not a BSON value: {value!r}")

    def _append_fields(self, document: Mapping[str, Any]) -> None:
        for name, value in document.items():
            self._parts.append(bytes((type_class(value),)) + name.encode() + b"\x00")
            self.append(value)
        self._parts.append(b"\x00")

    def _append_code(self, value: Code) -> None:
        if value.scope is None:
            self._parts.append(bytes((CODE,)) + _c_string(str(value)))
            return
        self._parts.append(bytes((CODE_WITH_SCOPE,)) + _c_string(str(value)))
        self._append_fields(value.scope)

    def _append_decimal(self, value: Decimal) -> None:
        if value.is_zero():
            kind = decimal_zero_kind(value)
            self._bits += _as_bits((kind >> 12) + _DECIMAL_ZERO_PREFIX, 5)
            self._bits += _as_bits(kind & 0xFFF, 12)
        else:
            self._bits += _DECIMAL_BITS
            if value.is_finite():
                self._bits += _as_bits(stored_exponent(value), 6)
        self._parts.append(encode_decimal(value))

    def key(self) -> bytes:
        """Return the key, closed by the byte that ends keys."""
        return b"".join(self._parts) + bytes((END,))

    def type_bits(self) -> bytes:
        """Return the type bits in their stored form; empty when all are zero."""
        if 1 not in self._bits:
            return b""
        data = bytes(
            sum(bit << place for place, bit in enumerate(self._bits[at : at + 8]))
            for at in range(0, len(self._bits), 8)
        )
        if len(data) == 1 and data[0] < 0x80:
            return data
        if len(data) <= 127:
            return bytes((0x80 | len(data),)) + data
        return b"\x80" + struct.pack("<I", len(data)) + data


def encode_key(values: Iterable[Any]) -> tuple[bytes, bytes]:
    """Return ``(key, type bits)`` of ``values`` (docs/protocol.md, section 3)."""
    builder = KeyStringBuilder()
    for value in values:
        builder.append(value)
    return builder.key(), builder.type_bits()


def type_class(value: Any) -> int:
    """Return the byte of ``value``'s class of types, in the order in which BSON types compare."""
    if isinstance(value, bool):
        return FALSE
    if isinstance(value, Code):
        return CODE if value.scope is None else CODE_WITH_SCOPE
    for types, class_byte in _CLASSES:
        if isinstance(value, types):
            return class_byte
    raise TypeError(f"not a BSON value: {value!r}")


_CLASSES: Final[tuple[tuple[Any, int], ...]] = (
    ((int, float, Decimal128), NUMERIC),
    (str, STRING),
    ((Mapping, DBRef), OBJECT),
    ((list, tuple), ARRAY),
    ((bytes, uuid.UUID), BIN_DATA),
    (ObjectId, OBJECT_ID),
    (type(None), NULLISH),
    ((datetime, DatetimeMS), DATE),
    (Timestamp, TIMESTAMP),
    ((Regex, re.Pattern), REGEX),
    (MinKey, MIN_KEY),
    (MaxKey, MAX_KEY),
)


def _as_bits(number: int, count: int) -> list[int]:
    return [(number >> place) & 1 for place in range(count - 1, -1, -1)]


def _c_string(text: str) -> bytes:
    return text.encode().replace(b"\x00", b"\x00\xff") + b"\x00"


def _binary(value: bytes | uuid.UUID) -> bytes:
    data = value.bytes if isinstance(value, uuid.UUID) else bytes(value)
    subtype = 4 if isinstance(value, uuid.UUID) else getattr(value, "subtype", 0)
    if len(data) < 0xFF:
        return bytes((BIN_DATA, len(data), subtype)) + data
    return struct.pack(">BBIB", BIN_DATA, 0xFF, len(data), subtype) + data


_FLAGS: Final = (
    (re.IGNORECASE, "i"),
    (re.LOCALE, "l"),
    (re.MULTILINE, "m"),
    (re.DOTALL, "s"),
    (re.UNICODE, "u"),
    (re.VERBOSE, "x"),
)


def _regex(value: "Regex[Any] | re.Pattern[Any]") -> bytes:
    pattern = value.pattern.encode() if isinstance(value.pattern, str) else value.pattern
    flags = "".join(letter for flag, letter in _FLAGS if value.flags & flag)
    return bytes((REGEX,)) + pattern + b"\x00" + flags.encode() + b"\x00"
