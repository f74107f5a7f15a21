"""BSON's types and the sizes of their values. Source: bsonspec.org.

A field is its type, its zero-terminated name and its value. Each value has a fixed size, begins
with its length, or is a regular expression: two zero-terminated texts.
"""

from struct import Struct
from typing import Any, Final

import bson
from bson.errors import InvalidBSON

DOUBLE, STRING, DOCUMENT, ARRAY, BINARY, UNDEFINED = 0x01, 0x02, 0x03, 0x04, 0x05, 0x06
OBJECT_ID, BOOLEAN, DATE, NULL, REGEX, DB_POINTER = 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C
CODE, SYMBOL, CODE_WITH_SCOPE = 0x0D, 0x0E, 0x0F
INT32, TIMESTAMP, INT64, DECIMAL, MAX_KEY, MIN_KEY = 0x10, 0x11, 0x12, 0x13, 0x7F, 0xFF

TYPE_NAMES: Final = {
    DOUBLE: "double", STRING: "string", DOCUMENT: "object", ARRAY: "array", BINARY: "binData",
    UNDEFINED: "undefined", OBJECT_ID: "objectId", BOOLEAN: "bool", DATE: "date", NULL: "null",
    REGEX: "regex", DB_POINTER: "dbPointer", CODE: "javascript", SYMBOL: "symbol",
    CODE_WITH_SCOPE: "javascriptWithScope", INT32: "int", TIMESTAMP: "timestamp", INT64: "long",
    DECIMAL: "decimal", MIN_KEY: "minKey", MAX_KEY: "maxKey",
}  # fmt: skip
"""MongoDB's name of each type."""

FIXED: Final = {
    DOUBLE: 8, UNDEFINED: 0, OBJECT_ID: 12, BOOLEAN: 1, DATE: 8, NULL: 0, INT32: 4, TIMESTAMP: 8,
    INT64: 8, DECIMAL: 16, MAX_KEY: 0, MIN_KEY: 0,
}  # fmt: skip
"""The size in bytes of values of a fixed size, by type."""

CONTAINERS: Final = frozenset({DOCUMENT, ARRAY})
"""The types of documents and arrays."""

TEXTS: Final = (STRING, CODE, SYMBOL)
"""The types whose values begin with a length that does not count itself."""

NESTED: Final = (DOCUMENT, ARRAY, CODE_WITH_SCOPE)
"""The types whose values contain a document and begin with a length that counts itself."""

UNCOUNTED: Final = {
    **dict.fromkeys(TEXTS, 4), **dict.fromkeys(NESTED, 0), BINARY: 5, DB_POINTER: 16,
}  # fmt: skip
"""For types whose values begin with a length: the bytes that this length does not count."""

_length = Struct("<I").unpack_from


class MalformedValueError(InvalidBSON, ValueError):
    """Bytes are no BSON value, KeyString or resume token.

    ``code`` is the number of the error with which a server refuses them.
    """

    def __init__(self, message: str, code: int = 22) -> None:
        super().__init__(message)
        self.code = code


def type_name(value: Any) -> str:
    """Return MongoDB's name for the type of a decoded value."""
    return TYPE_NAMES[bson.encode({"": value})[4]]


def value_end(data: bytes, kind: int, start: int) -> int:
    """Return the offset just past the value of type ``kind`` at ``start``.

    Lengths are trusted: a value that does not fit ends past the buffer. Raises MalformedValueError
    if the type is unknown, and ValueError or struct.error if the data ends within a value.
    """
    size = FIXED.get(kind)
    if size is not None:
        return start + size
    uncounted = UNCOUNTED.get(kind)
    if uncounted is not None:
        return start + uncounted + int(_length(data, start)[0])
    if kind == REGEX:
        return data.index(0, data.index(0, start) + 1) + 1
    raise MalformedValueError(f"unknown BSON type {kind:#x}")
