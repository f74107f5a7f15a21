"""The fields of a change event as slices of its bytes, found without decoding their values.

BSON's layout: https://bsonspec.org/spec.html. A field is its type, its name and its value; every
value has a fixed size or begins with its size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError, InvalidBSON

from shard_client.bson.values import (
    ARRAY,
    DOCUMENT,
    FIXED,
    INT32,
    INT64,
    NULL,
    STRING,
    UNCOUNTED,
    value_end,
)

_INT = struct.Struct("<i")
_SIZE = _INT.unpack_from
# A document without fields: its size and its closing zero.
_EMPTY_BYTES = 5

CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
"""Decodes documents: dates, also beyond Python's range, as DatetimeMS."""
UNREADABLE = (
    BSONError, ValueError, TypeError, ArithmeticError, LookupError, RuntimeError, struct.error,
)  # fmt: skip
"""What is raised where a document cannot be decoded, or its values cannot be columns. Servers store
what drivers cannot decode, such as binary data of subtype 2 with another inner size."""


class Slice(NamedTuple):
    """A field's value: its BSON type and its bytes."""

    kind: int
    value: bytes

    @property
    def is_nested(self) -> bool:
        """Whether the value is a document or an array."""
        return self.kind in (DOCUMENT, ARRAY)

    def text(self) -> str | None:
        """Return the value of a string; None for any other type."""
        return self.string().decode(errors="replace") if self.kind == STRING else None

    def string(self) -> bytes:
        """Return the UTF-8 of a string; nothing for any other type."""
        return self.value[4:-1] if self.kind == STRING else b""

    def fields(self) -> dict[bytes, Slice]:
        """Return the fields of a document by name; none for any other type. Raises InvalidBSON."""
        return fields_of(self.value) if self.kind == DOCUMENT else {}

    def whole_number(self) -> int | None:
        """Return the value of an int or a long; None for any other type."""
        if self.kind not in (INT32, INT64):
            return None
        return int.from_bytes(self.value, "little", signed=True)

    def wrapped(self) -> bytes:
        """Return a document whose only field, named v, has this value."""
        return document_of([(b"v", self)])

    def named(self, name: bytes) -> bytes:
        """Return the bytes of a field with this value: its type, its name and the value."""
        return b"%c%b\0%b" % (self.kind, name, self.value)


NOTHING = Slice(NULL, b"")
"""A null, for a field that is missing, too."""


def fields_of(document: bytes) -> dict[bytes, Slice]:
    """Return the top-level fields of a BSON document by name. Raises InvalidBSON."""
    values = values_in(document, 0, len(document))
    new = tuple.__new__  # faster than Slice's own
    return {name: new(Slice, (kind, document[at:end])) for kind, name, at, end in values}


def elements_of(document: bytes) -> list[tuple[bytes, Slice]]:
    """Return the top-level fields of a BSON document in order, also those with equal names.

    Raises InvalidBSON.
    """
    values = values_in(document, 0, len(document))
    new = tuple.__new__  # faster than Slice's own
    return [(name, new(Slice, (kind, document[at:end]))) for kind, name, at, end in values]


def field_of(document: bytes, name: bytes) -> Slice | None:
    """Return the first top-level field of this name, None for none. Raises InvalidBSON."""
    for kind, field, at, end in values_in(document, 0, len(document)):
        if field == name:
            return Slice(kind, document[at:end])
    return None


def values_in(data: bytes, start: int, end: int) -> Iterator[tuple[int, bytes, int, int]]:
    """Return the type, name, begin and end of each value of a document, given its place in `data`.

    Raises InvalidBSON.
    """
    position, end = start + 4, end - 1
    fixed, uncounted, index = FIXED.get, UNCOUNTED.get, data.index
    try:
        while position < end:
            kind = data[position]
            at = index(0, position + 1) + 1
            size = fixed(kind)
            if size is None:
                kept = uncounted(kind)
                size = value_end(data, kind, at) - at if kept is None else kept + _SIZE(data, at)[0]
            stop = at + size
            if not at <= stop <= end:
                raise InvalidBSON("a field exceeds its document")
            yield kind, data[position + 1 : at - 1], at, stop
            position = stop
    except (IndexError, ValueError, struct.error) as error:
        raise InvalidBSON(f"a document ends within a field: {error}") from error


def documents_in(data: bytes, start: int, end: int) -> list[bytes]:
    """Return the documents of an array, given its place in `data`. Raises InvalidBSON."""
    documents: list[bytes] = []
    position, end, index, size = start + 4, end - 1, data.index, _SIZE
    try:
        while position < end:
            kind, begin = data[position], index(0, position + 1) + 1
            position = begin + size(data, begin)[0]
            if kind != DOCUMENT or not begin + _EMPTY_BYTES <= position <= end:
                raise InvalidBSON("an array has an element that is no document")
            documents.append(data[begin:position])
    except (ValueError, struct.error) as error:
        raise InvalidBSON(f"an array ends within a document: {error}") from error
    return documents


def value_at(fields: Mapping[bytes, Slice], path: bytes) -> Slice | None:
    """Return the value at the dotted path of a shard key, in which numbers are no indexes."""
    name, _, rest = path.partition(b".")
    value = fields.get(name)
    if not rest or value is None:
        return value
    return value_at(value.fields(), rest)


def document_slice(fields: Iterable[tuple[bytes, Slice]]) -> Slice:
    """Return a document with these fields."""
    return Slice(DOCUMENT, document_of(fields))


def string_of(text: bytes) -> Slice:
    """Return a string, from its UTF-8."""
    return Slice(STRING, _INT.pack(len(text) + 1) + text + b"\0")


def array_of(values: Iterable[Slice]) -> Slice:
    """Return an array with these elements."""
    return Slice(ARRAY, document_of((b"%d" % index, value) for index, value in enumerate(values)))


def document_of(fields: Iterable[tuple[bytes, Slice]]) -> bytes:
    """Return the BSON document of these fields: what `fields_of` and `elements_of` read."""
    body = b"".join([b"%c%b\0%b" % (kind, name, value) for name, (kind, value) in fields])
    return _INT.pack(len(body) + 5) + body + b"\0"


def flattened(document: bytes) -> tuple[bytes, dict[bytes, Slice]]:
    """Return the BSON document with nested fields moved to its top level.

    A name is the path with underscores, such as `address_city`. Arrays and empty documents stay.
    The first of several fields with one name counts. Also return the fields of the top level that
    contain one of these.
    """
    fields = fields_of(document)
    flat: dict[bytes, Slice] = {}
    sources: dict[bytes, bytes] = {}
    alike: dict[bytes, Slice] = {}
    for name, value in fields.items():
        for path, leaf in _leaves(name, value):
            if path not in flat:
                flat[path], sources[path] = leaf, name
            else:
                alike |= {sources[path]: fields[sources[path]], name: value}
    return document_of(flat.items()), alike


def _leaves(path: bytes, value: Slice) -> Iterator[tuple[bytes, Slice]]:
    if value.kind == DOCUMENT and len(value.value) > _EMPTY_BYTES:
        for name, inner in value.fields().items():
            yield from _leaves(path + b"_" + name, inner)
    else:
        yield path, value


# Documents that are decoded by one call; all their values are in memory.
_DECODED_TOGETHER = 250


def decoded_documents(
    documents: Sequence[bytes], codec: CodecOptions[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Return the documents, decoded by few calls. Raises InvalidBSON."""
    for first in range(0, len(documents), _DECODED_TOGETHER):
        yield from bson.decode_all(b"".join(documents[first : first + _DECODED_TOGETHER]), codec)
