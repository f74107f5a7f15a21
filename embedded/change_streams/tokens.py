"""The resume tokens of events, as a server makes them: their values as KeyStrings.

``shard_client.bson`` reads them. Source: docs/protocol.md#resume-tokens.
"""

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
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

from shard_client.bson.keystring import (
    Kind,
    encode_integer,
    encode_shifted,
    encoded_number,
    stored_type_bits,
)
from shard_client.bson.resume_token import EVENT, ResumeToken
from shard_client.bson.values import MalformedValueError

_NOT_IMPLEMENTED: Final = 238
_END_OF_KEY: Final = b"\x04"
_INT_BITS: Final = (0, 0)
_LONG_BITS: Final = (0, 1)
_DOUBLE_BITS: Final = (1, 0)
_DECIMAL_BITS: Final = (1, 1)
_MINUS_ZERO_BITS: Final = (1, 1, 0, 0, 0)
_EXPONENT_BIAS: Final = 6176
_TINIEST_UNSCALED: Final = math.ldexp(1.0, -255)
_TINY_SHIFT: Final = 256
_LARGE: Final = float(1 << 63)
_MASK: Final = (1 << 64) - 1
_UUID_BYTES: Final = 19


def event_token(
    cluster_time: Timestamp,
    version: int,
    event_identifier: Mapping[str, Any] | None,
    *,
    txn_op_index: int = 0,
    from_invalidate: bool = False,
    uuid: UUID | None = None,
) -> ResumeToken:
    """Return the token of an event; the arguments are the token's fields.

    Raises MalformedValueError for a decimal that no double equals, which is not encoded here.
    """
    front = struct.pack(">BII", Kind.TIMESTAMP, cluster_time.time, cluster_time.inc)
    front += encode_integer(version)
    if version >= 1:
        front += encode_integer(EVENT)
    front += encode_integer(txn_op_index)
    if version >= 1:
        front += _BOOLEANS[from_invalidate]
    key = KeyStringBuilder(front, zero_bits=4 if version == 0 else 6)
    if uuid is not None or version >= 2:
        key.append(uuid)
    before = len(front) + (_UUID_BYTES if uuid is not None else version >= 2)
    if event_identifier is not None:
        key.append(event_identifier)
    encoded = key.key()
    return ResumeToken(
        cluster_time,
        version,
        EVENT,
        txn_op_index,
        from_invalidate,
        uuid,
        encoded[before:-1],
        None,
        encoded.hex().upper().encode("ascii"),
        key.type_bits() or None,
    )


def encode_double(value: float) -> bytes:
    """Encode a double."""
    magnitude = abs(value)
    if math.isnan(value):
        return bytes((Kind.NAN,))
    if magnitude == 0.0:
        return bytes((Kind.ZERO,))
    if magnitude < 1.0:
        return _encode_small(value)
    if magnitude >= _LARGE:
        return _encode_large(value)
    integer = int(magnitude)
    if integer == magnitude:
        return encode_shifted(integer << 1, value < 0)
    fraction_bytes = (64 - (integer << 1).bit_length()) // 8
    first = Kind.NEGATIVE_8_BYTES + fraction_bytes
    if value > 0:
        first = Kind.POSITIVE_8_BYTES - fraction_bytes
    body = int(math.ldexp(magnitude, 8 * fraction_bytes))
    body += (integer + 1) << (8 * fraction_bytes)
    return encoded_number(first, body.to_bytes(8), value < 0)


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value))


def _encode_small(value: float) -> bytes:
    magnitude = abs(value)
    if magnitude >= _TINIEST_UNSCALED:
        body = (_bits(magnitude) << 2) & _MASK
    else:
        body = (_bits(math.ldexp(magnitude, _TINY_SHIFT)) << 1) + (1 << 62)
    first = Kind.NEGATIVE_SMALL if value < 0 else Kind.POSITIVE_SMALL
    return encoded_number(first, body.to_bytes(8), value < 0)


def _encode_large(value: float) -> bytes:
    shifted = (_bits(abs(value)) << 1) & ~(1 << 63)
    body = _MASK if math.isinf(value) else shifted
    first = Kind.NEGATIVE_LARGE if value < 0 else Kind.POSITIVE_LARGE
    return encoded_number(first, body.to_bytes(8), value < 0)


class KeyStringBuilder:
    """Builds one key from ascending values: ``append`` each, then call ``key`` and ``type_bits``.

    ``prefix`` is the encoding of leading values, ``zero_bits`` the number of their type bits, which
    must all be zero. A prefix that many keys share is thus encoded only once.
    """

    def __init__(self, prefix: bytes = b"", zero_bits: int = 0) -> None:
        self._parts: list[bytes] = [prefix]
        self._bits: list[int] = [0] * zero_bits

    def append(self, value: Any) -> None:
        """Add one BSON value.

        Raises TypeError if it is no BSON value, and MalformedValueError for a decimal that no
        double equals, which is not encoded here.
        """
        (_APPENDERS.get(type(value)) or _appender_of_base(value))(self, value)

    def _constant(self, value: Any) -> None:
        self._parts.append(_CONSTANTS[type(value)])

    def _bool(self, value: bool) -> None:
        self._parts.append(_BOOLEANS[value])

    def _int(self, value: int) -> None:
        is_long = isinstance(value, Int64) or not -(1 << 31) <= value < 1 << 31
        self._bits += _LONG_BITS if is_long else _INT_BITS
        least = value == -(1 << 63)
        self._parts.append(_encode_large(float(value)) if least else encode_integer(value))

    def _double(self, value: float) -> None:
        minus_zero = value == 0.0 and math.copysign(1.0, value) < 0
        self._bits += _MINUS_ZERO_BITS if minus_zero else _DOUBLE_BITS
        self._parts.append(encode_double(value))

    def _decimal(self, value: Decimal128) -> None:
        number = value.to_decimal()
        double, exponent = float(number), number.as_tuple().exponent
        if not number.is_finite() or number.is_zero() or Decimal(double) != number:
            raise MalformedValueError(
                f"no KeyString is made of the decimal {value}", _NOT_IMPLEMENTED
            )
        stored = (int(exponent) + _EXPONENT_BIAS) & 0x3F
        self._bits += _DECIMAL_BITS
        self._bits += [(stored >> place) & 1 for place in range(5, -1, -1)]
        self._parts.append(encode_double(double))

    def _string(self, value: str) -> None:
        self._bits.append(0)
        self._parts.append(b"\x3c" + _c_string(value))

    def _object_id(self, value: ObjectId) -> None:
        self._parts.append(b"\x64" + value.binary)

    def _binary(self, value: bytes) -> None:
        if len(value) < 0xFF:
            head = struct.pack(">BB", Kind.BINARY, len(value))
        else:
            head = struct.pack(">BBI", Kind.BINARY, 0xFF, len(value))
        self._parts.append(head + bytes((getattr(value, "subtype", 0),)) + value)

    def _uuid(self, value: UUID) -> None:
        self._parts.append(b"\x5a\x10\x04" + value.bytes)

    def _timestamp(self, value: Timestamp) -> None:
        self._parts.append(struct.pack(">BII", Kind.TIMESTAMP, value.time, value.inc))

    def _date(self, value: datetime | DatetimeMS) -> None:
        millis = int(value) if isinstance(value, DatetimeMS) else int(DatetimeMS(value))
        self._parts.append(struct.pack(">BQ", Kind.DATE, (millis + (1 << 63)) & _MASK))

    def _regex(self, value: "Regex[Any]") -> None:
        pattern = value.pattern.encode() if isinstance(value.pattern, str) else value.pattern
        flags = "".join(letter for flag, letter in _FLAGS if value.flags & flag)
        self._parts.append(bytes((Kind.REGEX,)) + pattern + b"\0" + flags.encode() + b"\0")

    def _code(self, value: Code) -> None:
        if value.scope is None:
            self._parts.append(bytes((Kind.CODE,)) + _c_string(str(value)))
        else:
            self._parts.append(bytes((Kind.CODE_WITH_SCOPE,)) + _c_string(str(value)))
            self._fields(value.scope)

    def _array(self, items: Iterable[Any]) -> None:
        self._parts.append(b"\x50")
        for item in items:
            self.append(item)
        self._parts.append(b"\0")

    def _object(self, document: Mapping[str, Any]) -> None:
        self._parts.append(b"\x46")
        self._fields(document)

    def _reference(self, value: DBRef) -> None:
        self._object(value.as_doc())

    def _fields(self, document: Mapping[str, Any]) -> None:
        for name, value in document.items():
            place = len(self._parts)
            self.append(value)
            kind = _type_class(self._parts[place][0])
            self._parts.insert(place, bytes((kind,)) + name.encode() + b"\0")
        self._parts.append(b"\0")

    def key(self) -> bytes:
        """Return the key, with the byte that ends keys."""
        return b"".join(self._parts) + _END_OF_KEY

    def type_bits(self) -> bytes:
        """Return the type bits in their stored form; empty if all are zero."""
        if 1 not in self._bits:
            return b""
        return stored_type_bits(
            bytes(
                sum(bit << place for place, bit in enumerate(self._bits[at : at + 8]))
                for at in range(0, len(self._bits), 8)
            )
        )


_TYPE_CLASSES: Final[Mapping[int, int]] = {
    **dict.fromkeys(range(Kind.NAN, Kind.POSITIVE_LARGE + 1), int(Kind.NAN)),
    Kind.TRUE: int(Kind.FALSE),
}


def _type_class(first: int) -> int:
    """Return the byte of the type class, given the first byte of a value: one for all numbers."""
    return _TYPE_CLASSES.get(first, first)


_APPENDERS: Final[dict[type, Callable[[KeyStringBuilder, Any], None]]] = {
    bool: KeyStringBuilder._bool,
    Int64: KeyStringBuilder._int,
    int: KeyStringBuilder._int,
    float: KeyStringBuilder._double,
    Decimal128: KeyStringBuilder._decimal,
    Code: KeyStringBuilder._code,
    str: KeyStringBuilder._string,
    dict: KeyStringBuilder._object,
    Mapping: KeyStringBuilder._object,
    DBRef: KeyStringBuilder._reference,
    list: KeyStringBuilder._array,
    bytes: KeyStringBuilder._binary,
    Binary: KeyStringBuilder._binary,
    UUID: KeyStringBuilder._uuid,
    ObjectId: KeyStringBuilder._object_id,
    type(None): KeyStringBuilder._constant,
    datetime: KeyStringBuilder._date,
    DatetimeMS: KeyStringBuilder._date,
    Timestamp: KeyStringBuilder._timestamp,
    Regex: KeyStringBuilder._regex,
    MinKey: KeyStringBuilder._constant,
    MaxKey: KeyStringBuilder._constant,
}
_CONSTANTS: Final = {type(None): b"\x14", MinKey: b"\x0a", MaxKey: b"\xf0"}
_BOOLEANS: Final = (b"\x6e", b"\x6f")
_FLAGS: Final = (
    (re.IGNORECASE, "i"),
    (re.LOCALE, "l"),
    (re.MULTILINE, "m"),
    (re.DOTALL, "s"),
    (re.UNICODE, "u"),
    (re.VERBOSE, "x"),
)


def _appender_of_base(value: Any) -> Callable[[KeyStringBuilder, Any], None]:
    for base, appender in _APPENDERS.items():
        if isinstance(value, base):
            return appender
    raise TypeError(f"not a BSON value: {value!r}")


def _c_string(text: str) -> bytes:
    return text.encode().replace(b"\x00", b"\x00\xff") + b"\x00"
