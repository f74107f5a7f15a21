"""KeyStrings, version 1: BSON values as bytes that compare as the values do.

Resume tokens consist of them (docs/protocol.md#resume-tokens). The order ignores some differences,
for example between an int and an equal double; the type bits record them. A number's first byte
encodes its sign and size class. The bytes after it are big-endian and, for negative numbers,
inverted. Values are encoded, and the ends of encoded values are found.
"""

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple
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

from shard_client.bson.values import MalformedValueError

END: Final = 0x04
_OVERFLOW: Final = 15
_NOT_IMPLEMENTED: Final = 238
_MAX_DEPTH: Final = 100


class Kind(IntEnum):
    """The first bytes of values in an ascending KeyString: their types."""

    MIN_KEY = 0x0A
    UNDEFINED = 0x0F
    NULL = 0x14
    NAN = 0x1E
    NEGATIVE_LARGE = 0x1F
    NEGATIVE_8_BYTES = 0x20
    NEGATIVE_1_BYTE = 0x27
    NEGATIVE_SMALL = 0x28
    ZERO = 0x29
    POSITIVE_SMALL = 0x2A
    POSITIVE_1_BYTE = 0x2B
    POSITIVE_8_BYTES = 0x32
    POSITIVE_LARGE = 0x33
    STRING = 0x3C
    OBJECT = 0x46
    ARRAY = 0x50
    BINARY = 0x5A
    OBJECT_ID = 0x64
    FALSE = 0x6E
    TRUE = 0x6F
    DATE = 0x78
    TIMESTAMP = 0x82
    REGEX = 0x8C
    DB_POINTER = 0x96
    CODE = 0xA0
    CODE_WITH_SCOPE = 0xAA
    MAX_KEY = 0xF0


_K = Kind
_INTEGERS: Final = frozenset(
    {*range(_K.NEGATIVE_8_BYTES, _K.NEGATIVE_SMALL), *range(_K.POSITIVE_1_BYTE, _K.POSITIVE_LARGE)}
)
# The size in bytes of the content of types that have a fixed one.
_FIXED: Final[Mapping[int, int]] = {
    **dict.fromkeys((_K.MIN_KEY, _K.UNDEFINED, _K.NULL, _K.FALSE, _K.TRUE, _K.MAX_KEY), 0),
    Kind.OBJECT_ID: 12,
    Kind.DATE: 8,
    Kind.TIMESTAMP: 8,
}
_TEXTS: Final[Mapping[int, int]] = {Kind.STRING: 1, Kind.CODE: 1, Kind.REGEX: 2}

_END_OF_KEY: Final = b"\x04"
_INT_BITS: Final = (0, 0)
_LONG_BITS: Final = (0, 1)
_DOUBLE_BITS: Final = (1, 0)
_DECIMAL_BITS: Final = (1, 1)
_MINUS_ZERO_BITS: Final = (1, 1, 0, 0, 0)
_EXPONENT_BIAS: Final = 6176
_INFINITE: Final = (b"", b"\xff" * 8, b"\x00" * 8)
"""The contents of numbers without an exponent: NaN, and both infinities."""

_TINIEST_UNSCALED: Final = math.ldexp(1.0, -255)
_TINY_SHIFT: Final = 256
_LARGE: Final = float(1 << 63)
_MASK: Final = (1 << 64) - 1


class Value(NamedTuple):
    """One value: its type byte, and its start and end offsets, including the type byte."""

    kind: int
    start: int
    end: int


class Reader:
    """Iterates over the values of a KeyString.

    Raises MalformedValueError with a server's messages and codes for malformed bytes. ``bits`` is
    the number of type bits of the values passed. It depends on ``type_bits``, in the stored form.
    """

    def __init__(self, data: bytes, position: int = 0, type_bits: bytes = b"") -> None:
        self.data = data
        self.position = position
        self.bits = 0
        self._type_bits = int.from_bytes(_unstored(type_bits), "little")

    @property
    def more(self) -> bool:
        """Whether another value follows, rather than the key's end or the end of the bytes."""
        return self.position < len(self.data) and self.data[self.position] != END

    def next(self) -> Value:
        """Step over the next value."""
        start = self.position
        kind = self._take(1)[0]
        self._skip_content(kind, depth=0)
        return Value(kind, start, self.position)

    def fields(self, value: Value) -> dict[str, Value]:
        """Return the fields of an object by name (the first field of each name)."""
        inner = Reader(self.data, value.start + 1)
        found: dict[str, Value] = {}
        while inner._take(1)[0] != 0:
            name = inner._take_text()
            found.setdefault(name.decode("utf-8", "replace"), inner.next())
        return found

    def content(self, value: Value) -> bytes:
        """Return a value's bytes after its type byte."""
        return self.data[value.start + 1 : value.end]

    def integer(self, value: Value) -> int | None:
        """Return the number that a value is, or None if it is no integer."""
        kind = value.kind
        if kind == Kind.ZERO:
            return 0
        if kind not in _INTEGERS:
            return None
        content = self.content(value)
        if len(content) != _integer_size(kind):
            return None  # a fraction follows
        shifted = int.from_bytes(content if kind > Kind.ZERO else _inverted(content))
        return shifted >> 1 if kind > Kind.ZERO else -(shifted >> 1)

    def _take(self, size: int) -> bytes:
        left = len(self.data) - self.position
        if size > left:
            # The server's message; its offset is always 0.
            raise MalformedValueError(
                f"Invalid advance ({size}) past end of buffer[{left}] at offset: 0", _OVERFLOW
            )
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def _take_text(self) -> bytes:
        """Consume a string up to its terminating 00; a 00 inside it is encoded as 00 FF."""
        start = self.position
        while True:
            end = self.data.find(0, self.position)
            if end < 0:
                raise _malformed(50816, "Failed to find null terminator in string.")
            self.position = end + 1
            if self.data[end + 1 : end + 2] != b"\xff":
                return self.data[start:end]
            self.position = end + 2

    def _skip_content(self, kind: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _malformed(
                _OVERFLOW, "KeyString encoding exceeded maximum allowable BSON nesting depth"
            )
        if kind in _FIXED:
            self._take(_FIXED[kind])
        elif kind in _TEXTS:
            self.bits += kind == Kind.STRING
            for _ in range(_TEXTS[kind]):
                self._take_text()
        elif kind == Kind.BINARY:
            size = self._take(1)[0]
            if size == 0xFF:
                size = int.from_bytes(self._take(4))
            self._take(size + 1)
        elif kind == Kind.DB_POINTER:
            self._take(int.from_bytes(self._take(4)) + 12)
        elif kind == Kind.ARRAY:
            while (inner := self._take(1)[0]) != 0:
                self._skip_content(inner, depth + 1)
        elif kind in (Kind.OBJECT, Kind.CODE_WITH_SCOPE):
            if kind == Kind.CODE_WITH_SCOPE:
                self._take_text()
            self._skip_object(depth)
        else:
            start = self.position
            self._skip_number(kind)
            self._count_bits(kind, self.data[start : self.position])

    def _skip_object(self, depth: int) -> None:
        while self._take(1)[0] != 0:
            self._take_text()
            self._skip_content(self._take(1)[0], depth + 1)

    def _skip_number(self, kind: int) -> None:
        """Step over a number: 8 bytes more than usual continue a decimal that is no double."""
        if kind in (Kind.NAN, Kind.ZERO):
            return
        if not Kind.NEGATIVE_LARGE <= kind <= Kind.POSITIVE_LARGE:
            raise _malformed(50829, f"Unknown type: {kind}.")
        size = _integer_size(kind) if kind in _INTEGERS else 8
        content = self._take(size)
        if kind in _INTEGERS:
            if not self._is_odd(kind, content):
                return
            # The integer has a fraction; both have 8 bytes together.
            rest = self._take(8 - size)
            continues = size == 8 or self._is_odd(kind, rest)
        else:
            encoded = int.from_bytes(content if kind > Kind.ZERO else _inverted(content))
            if kind in (Kind.NEGATIVE_SMALL, Kind.POSITIVE_SMALL):
                beyond_doubles = not encoded >> 62
            else:
                beyond_doubles = bool(encoded >> 63)
            continues = encoded != _MASK and (beyond_doubles or bool(encoded & 1))
        if continues:
            self._take(8)

    def _count_bits(self, kind: int, content: bytes) -> None:
        """Count a number's type bits: a decimal has those of its exponent, unless it has none."""
        bits = self._type_bits >> self.bits
        self.bits += len(_DECIMAL_BITS)
        if bits & 0b11 != 0b11:
            return
        if kind == Kind.ZERO:
            minus_zero = not bits & 0b11100
            self.bits += 3 if minus_zero else 15
        elif content not in _INFINITE:
            self.bits += 6

    @staticmethod
    def _is_odd(kind: int, content: bytes) -> bool:
        return bool((content[-1] ^ (kind < Kind.ZERO)) & 1)


def _malformed(code: int, what: str) -> MalformedValueError:
    return MalformedValueError(f"KeyString format error: {what}", code)


def _integer_size(kind: int) -> int:
    return abs(kind - Kind.ZERO) - 1


def _inverted(data: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in data)


def check(data: bytes) -> None:
    """Check a whole KeyString, as a server does before it reads single values."""
    reader = Reader(data)
    while reader.more:
        reader.next()


def _signed(first: int, body: bytes, negative: bool) -> bytes:
    return bytes((first,)) + (_inverted(body) if negative else body)


@lru_cache(1024)
def encode_integer(value: int) -> bytes:
    """Encode an integer of 32 or 64 bits."""
    if value == 0:
        return bytes((Kind.ZERO,))
    if value == -(1 << 63):
        return _encode_large(float(value))
    return _encode_shifted(abs(value) << 1, value < 0)


def _encode_shifted(shifted: int, negative: bool) -> bytes:
    """Encode an integer that is shifted left by one; the lowest bit marks a fraction."""
    size = (shifted.bit_length() + 7) // 8
    first = Kind.NEGATIVE_1_BYTE - (size - 1) if negative else Kind.POSITIVE_1_BYTE + (size - 1)
    return _signed(first, shifted.to_bytes(size), negative)


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
        return _encode_shifted(integer << 1, value < 0)
    fraction_bytes = (64 - (integer << 1).bit_length()) // 8
    first = Kind.NEGATIVE_8_BYTES + fraction_bytes
    if value > 0:
        first = Kind.POSITIVE_8_BYTES - fraction_bytes
    body = int(math.ldexp(magnitude, 8 * fraction_bytes))
    body += (integer + 1) << (8 * fraction_bytes)
    return _signed(first, body.to_bytes(8), value < 0)


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value))


def _encode_small(value: float) -> bytes:
    magnitude = abs(value)
    if magnitude >= _TINIEST_UNSCALED:
        body = (_bits(magnitude) << 2) & _MASK
    else:
        body = (_bits(math.ldexp(magnitude, _TINY_SHIFT)) << 1) + (1 << 62)
    first = Kind.NEGATIVE_SMALL if value < 0 else Kind.POSITIVE_SMALL
    return _signed(first, body.to_bytes(8), value < 0)


def _encode_large(value: float) -> bytes:
    shifted = (_bits(abs(value)) << 1) & ~(1 << 63)
    body = _MASK if math.isinf(value) else shifted
    first = Kind.NEGATIVE_LARGE if value < 0 else Kind.POSITIVE_LARGE
    return _signed(first, body.to_bytes(8), value < 0)


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
        self._bits += _INT_BITS if -(1 << 31) <= value < 1 << 31 else _LONG_BITS
        self._parts.append(encode_integer(value))

    def _long(self, value: int) -> None:
        self._bits += _LONG_BITS
        self._parts.append(encode_integer(value))

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
        return _stored(
            bytes(
                sum(bit << place for place, bit in enumerate(self._bits[at : at + 8]))
                for at in range(0, len(self._bits), 8)
            )
        )


def _stored(bits: bytes) -> bytes:
    """Return type bits in their stored form: with their length, unless they are 7 at most."""
    if len(bits) == 1 and bits[0] < 0x80:
        return bits
    if len(bits) <= 127:
        return bytes((0x80 | len(bits),)) + bits
    return b"\x80" + struct.pack("<I", len(bits)) + bits


def _unstored(bits: bytes) -> bytes:
    if not bits or bits[0] < 0x80:
        return bits
    return bits[5 if bits[0] == 0x80 else 1 :]


def fitted_type_bits(key: bytes, type_bits: bytes) -> bytes:
    """Return the type bits of ``key``, given those of a key that more or fewer 32-bit integers end.

    Both are in their stored form.
    """
    reader = Reader(key, type_bits=type_bits)
    while reader.more:
        reader.next()
    size = (reader.bits + 7) // 8
    return _stored(_unstored(type_bits)[:size].ljust(size, b"\0"))


_TYPE_CLASSES: Final[Mapping[int, int]] = {
    **dict.fromkeys(range(Kind.NAN, Kind.POSITIVE_LARGE + 1), int(Kind.NAN)),
    Kind.TRUE: int(Kind.FALSE),
}


def _type_class(first: int) -> int:
    """Return the byte of the type class, given the first byte of a value: one for all numbers."""
    return _TYPE_CLASSES.get(first, first)


_APPENDERS: Final[dict[type, Callable[[KeyStringBuilder, Any], None]]] = {
    bool: KeyStringBuilder._bool,
    Int64: KeyStringBuilder._long,
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
