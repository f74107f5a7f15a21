"""Reader of the KeyString inside a resume token (docs/protocol.md#resume-tokens).

It decodes only what a router needs: the simple values at the front, and the ends of the values
after them.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from shard_client.errors import CommandError

END: Final = 0x04
_OVERFLOW: Final = 15
_MAX_DEPTH: Final = 100


class Kind(IntEnum):
    """The first bytes of values in an ascending KeyString: their types."""

    NULL = 0x14
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
    DB_REF = 0x96
    CODE = 0xA0
    CODE_WITH_SCOPE = 0xAA


_ZERO: Final = 0x29
# Negative integers of 8 bytes down to 1, zero, positive integers of 1 byte up to 8.
_INTS: Final = frozenset({*range(0x20, 0x28), _ZERO, *range(0x2B, 0x33)})
# Content length in bytes of fixed-size types: minKey, undefined, NaN, maxKey and others have none.
_FIXED: Final[Mapping[int, int]] = {
    **dict.fromkeys((0x0A, 0x0F, Kind.NULL, Kind.FALSE, Kind.TRUE, _ZERO, 0x1E, 0xF0), 0),
    Kind.OBJECT_ID: 12,
    Kind.DATE: 8,
    Kind.TIMESTAMP: 8,
}
_TEXTS: Final[Mapping[int, int]] = {Kind.STRING: 1, Kind.CODE: 1, Kind.REGEX: 2}


class OpaqueValueError(Exception):
    """A value whose end is unknown without decoding it (a number with a fraction)."""


class Value(NamedTuple):
    """One value: its type byte, and its start and end offsets, including the type byte."""

    kind: int
    start: int
    end: int


class Reader:
    """Iterates over the values of a KeyString. Raises mongos's CommandError for malformed bytes."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

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

    def _take(self, size: int) -> bytes:
        left = len(self.data) - self.position
        if size > left:
            # The server's message; its offset is always 0.
            raise CommandError(
                _OVERFLOW,
                f"Invalid advance ({size}) past end of buffer[{left}] at offset: 0",
                code_name="Overflow",
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
                _OVERFLOW,
                "KeyString encoding exceeded maximum allowable BSON nesting depth",
                code_name="Overflow",
            )
        if kind in _FIXED:
            self._take(_FIXED[kind])
        elif kind in _TEXTS:
            for _ in range(_TEXTS[kind]):
                self._take_text()
        elif kind == Kind.BINARY:
            size = self._take(1)[0]
            if size == 0xFF:
                size = int.from_bytes(self._take(4), "big")
            self._take(size + 1)
        elif kind == Kind.DB_REF:
            self._take(int.from_bytes(self._take(4), "big") + 12)
        elif kind == Kind.ARRAY:
            while (inner := self._take(1)[0]) != 0:
                self._skip_content(inner, depth + 1)
        elif kind in (Kind.OBJECT, Kind.CODE_WITH_SCOPE):
            if kind == Kind.CODE_WITH_SCOPE:
                self._take_text()
            self._skip_object(depth)
        else:
            self._skip_number(kind)

    def _skip_object(self, depth: int) -> None:
        while self._take(1)[0] != 0:
            self._take_text()
            self._skip_content(self._take(1)[0], depth + 1)

    def _skip_number(self, kind: int) -> None:
        if kind not in _INTS:
            if 0x1E <= kind <= 0x33:
                raise OpaqueValueError
            raise _malformed(50829, f"Unknown type: {kind}.")
        content = self._take(abs(kind - _ZERO) - 1)
        last = content[-1] if kind > _ZERO else ~content[-1]
        if last & 1:
            raise OpaqueValueError


def _malformed(code: int, what: str, code_name: str | None = None) -> CommandError:
    return CommandError(code, f"KeyString format error: {what}", code_name=code_name)


def check(data: bytes) -> None:
    """Check a whole KeyString, as a server does before it reads single values."""
    reader = Reader(data)
    try:
        while reader.more:
            reader.next()
    except OpaqueValueError:
        # The values after a number with a fraction are not checked.
        return


def integer(kind: int, content: bytes) -> int | None:
    """Return an integer's value, or None if the value is not an integer."""
    if kind == _ZERO:
        return 0
    if kind not in _INTS:
        return None
    if kind > _ZERO:
        return int.from_bytes(content, "big") >> 1
    return -(int.from_bytes(bytes(~b & 0xFF for b in content), "big") >> 1)
