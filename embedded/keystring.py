"""KeyString, version 1: BSON values as bytes that compare as the values do.

Resume tokens consist of it (docs/protocol.md#resume-tokens). The order ignores some differences,
for example between an int and an equal double; the type bits record them. Nothing here decodes.
"""

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from math import copysign
from typing import Any, Final

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

from embedded.keystring_numbers import NAN, POSITIVE_LARGE, encode_double, encode_integer
from shard_client.errors import CommandError

TIMESTAMP: Final = 130
_FALSE, _TRUE = 110, 111
_BIN_DATA, _DATE, _REGEX, _CODE, _CODE_WITH_SCOPE = 90, 120, 140, 160, 170
_END: Final = b"\x04"
_INT_BITS: Final = (0, 0)
_LONG_BITS: Final = (0, 1)
_DOUBLE_BITS: Final = (1, 0)
_DECIMAL_BITS: Final = (1, 1)
_MINUS_ZERO_BITS: Final = (1, 1, 0, 0, 0)
_EXPONENT_BIAS: Final = 6176


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

        Raises:
            TypeError: ``value`` is not a BSON value.
            CommandError: 238 for a decimal that no double equals.
        """
        (_APPENDERS.get(type(value)) or _appender_of_base(value))(self, value)

    def _constant(self, value: Any) -> None:
        self._parts.append(_CONSTANTS[type(value)])

    def _bool(self, value: bool) -> None:
        self._parts.append(bytes((_TRUE if value else _FALSE,)))

    def _int(self, value: int) -> None:
        self._bits += _INT_BITS if -(1 << 31) <= value < 1 << 31 else _LONG_BITS
        self._parts.append(encode_integer(value))

    def _long(self, value: int) -> None:
        self._bits += _LONG_BITS
        self._parts.append(encode_integer(value))

    def _double(self, value: float) -> None:
        minus_zero = value == 0.0 and copysign(1.0, value) < 0
        self._bits += _MINUS_ZERO_BITS if minus_zero else _DOUBLE_BITS
        self._parts.append(encode_double(value))

    def _decimal(self, value: Decimal128) -> None:
        number = value.to_decimal()
        double, exponent = float(number), number.as_tuple().exponent
        if not number.is_finite() or number.is_zero() or Decimal(double) != number:
            raise CommandError(
                238, f"the embedded cluster makes no tokens for the decimal {value}",
                code_name="NotImplemented",
            )  # fmt: skip
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
            head = struct.pack(">BB", _BIN_DATA, len(value))
        else:
            head = struct.pack(">BBI", _BIN_DATA, 0xFF, len(value))
        self._parts.append(head + bytes((getattr(value, "subtype", 0),)) + value)

    def _timestamp(self, value: Timestamp) -> None:
        self._parts.append(struct.pack(">BII", TIMESTAMP, value.time, value.inc))

    def _date(self, value: datetime | DatetimeMS) -> None:
        millis = int(value) if isinstance(value, DatetimeMS) else int(DatetimeMS(value))
        self._parts.append(struct.pack(">BQ", _DATE, (millis + (1 << 63)) & ((1 << 64) - 1)))

    def _regex(self, value: "Regex[Any]") -> None:
        pattern = value.pattern.encode() if isinstance(value.pattern, str) else value.pattern
        flags = "".join(letter for flag, letter in _FLAGS if value.flags & flag)
        self._parts.append(bytes((_REGEX,)) + pattern + b"\0" + flags.encode() + b"\0")

    def _code(self, value: Code) -> None:
        if value.scope is None:
            self._parts.append(bytes((_CODE,)) + _c_string(str(value)))
        else:
            self._parts.append(bytes((_CODE_WITH_SCOPE,)) + _c_string(str(value)))
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
        return b"".join(self._parts) + _END

    def type_bits(self) -> bytes:
        """Return the type bits in their stored form; empty if all are zero."""
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


def _type_class(first: int) -> int:
    """Return the byte of the type class, given the first byte of a value: one for all numbers."""
    if NAN <= first <= POSITIVE_LARGE:
        return NAN
    return _FALSE if first == _TRUE else first


_Builder = KeyStringBuilder
_APPENDERS: Final[dict[type, Callable[[KeyStringBuilder, Any], None]]] = {
    bool: _Builder._bool,
    Int64: _Builder._long,
    int: _Builder._int,
    float: _Builder._double,
    Decimal128: _Builder._decimal,
    Code: _Builder._code,
    str: _Builder._string,
    dict: _Builder._object,
    Mapping: _Builder._object,
    DBRef: _Builder._reference,
    list: _Builder._array,
    bytes: _Builder._binary,
    Binary: _Builder._binary,
    ObjectId: _Builder._object_id,
    type(None): _Builder._constant,
    datetime: _Builder._date,
    DatetimeMS: _Builder._date,
    Timestamp: _Builder._timestamp,
    Regex: _Builder._regex,
    MinKey: _Builder._constant,
    MaxKey: _Builder._constant,
}
_CONSTANTS: Final = {type(None): b"\x14", MinKey: b"\x0a", MaxKey: b"\xf0"}
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
