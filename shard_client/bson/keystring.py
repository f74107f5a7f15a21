"""KeyStrings, version 1: BSON values as bytes that compare as the values do.

Resume tokens consist of them (docs/protocol.md#resume-tokens). The order ignores some differences,
for example between an int and an equal double; the type bits record them. A number's first byte
encodes its sign and size class. The bytes after it are big-endian and, for negative numbers,
inverted. The ends of encoded values are found; of values, integers are encoded. Only servers encode
others.
"""

import struct
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from shard_client.bson.values import MalformedValueError

END: Final = 0x04
_OVERFLOW: Final = 15
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
_SIZES_BY_KIND: Final[Mapping[int, int]] = {
    **dict.fromkeys((_K.MIN_KEY, _K.UNDEFINED, _K.NULL, _K.FALSE, _K.TRUE, _K.MAX_KEY), 0),
    Kind.OBJECT_ID: 12,
    Kind.DATE: 8,
    Kind.TIMESTAMP: 8,
}
_STRINGS_IN_KIND: Final[Mapping[int, int]] = {Kind.STRING: 1, Kind.CODE: 1, Kind.REGEX: 2}

_INFINITE: Final = (b"", b"\xff" * 8, b"\x00" * 8)
"""The contents of numbers without an exponent: NaN, and both infinities."""

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
        fields: dict[str, Value] = {}
        while inner._take(1)[0] != 0:
            name = inner._take_text()
            fields.setdefault(name.decode("utf-8", "replace"), inner.next())
        return fields

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
        if kind in _SIZES_BY_KIND:
            self._take(_SIZES_BY_KIND[kind])
        elif kind in _STRINGS_IN_KIND:
            self.bits += kind == Kind.STRING
            for _ in range(_STRINGS_IN_KIND[kind]):
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
        self.bits += 2
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


def require_whole_key(data: bytes) -> None:
    """Check a whole KeyString, as a server does before it reads single values."""
    reader = Reader(data)
    while reader.more:
        reader.next()


def encoded_number(first: int, body: bytes, negative: bool) -> bytes:
    """Return an encoded number: its first byte, and its body, which is inverted if negative."""
    return bytes((first,)) + (_inverted(body) if negative else body)


@lru_cache(1024)
def encode_integer(value: int) -> bytes:
    """Encode an integer whose absolute value has at most 63 bits."""
    if value == 0:
        return bytes((Kind.ZERO,))
    return encode_shifted(abs(value) << 1, value < 0)


def encode_shifted(shifted: int, negative: bool) -> bytes:
    """Encode an integer that is shifted left by one; the lowest bit marks a fraction."""
    size = (shifted.bit_length() + 7) // 8
    first = Kind.NEGATIVE_1_BYTE - (size - 1) if negative else Kind.POSITIVE_1_BYTE + (size - 1)
    return encoded_number(first, shifted.to_bytes(size), negative)


def stored_type_bits(bits: bytes) -> bytes:
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


def fitted_type_bits(key: bytes, type_bits: bytes, *, strings: int = 0, place: int = 0) -> bytes:
    """Return the type bits of ``key``, given those of a similar key; both in their stored form.

    That key ends in more or fewer 32-bit integers. From the bit ``place`` on, it may have
    ``strings`` fewer strings; if that is negative, more. The result is empty if all bits are zero.
    """
    bits = int.from_bytes(_unstored(type_bits), "little")
    before = bits & ((1 << place) - 1)
    rest = bits >> place
    bits = before | ((rest << strings if strings >= 0 else rest >> -strings) << place)
    size = (bits.bit_length() + 7) // 8
    reader = Reader(key, type_bits=stored_type_bits(bits.to_bytes(size, "little")))
    while reader.more:
        reader.next()
    size = (reader.bits + 7) // 8
    bits &= (1 << 8 * size) - 1
    return stored_type_bits(bits.to_bytes(size, "little")) if bits else b""
