"""Walk raw BSON without decoding it.

A document is identified by its buffer and the offset of its length. Positions are offsets into that
buffer, and values are not copied. Source: bsonspec.org; docs/protocol.md#wire-protocol.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class by its nature
from typing import NamedTuple

from shard_client.bson.values import (
    CODE_WITH_SCOPE,
    CONTAINERS,
    STRING,
    TEXTS,
    MalformedValueError,
    value_end,
)
from shard_client.errors import ProtocolError

MAX_DEPTH = 200
"""Maximum nesting depth: servers accept 180 levels from users and add a few of their own."""

_LEAST_LEFT = 64
_LEAST_TEXT = 5

_int32 = Struct("<i").unpack_from


class Element(NamedTuple):
    """One field: its BSON type, its name, and the offsets of its value in the buffer."""

    type: int
    name: bytes
    start: int
    end: int


def document_of(fields: bytes) -> bytes:
    """Return the document that has these fields, raw and one after the other."""
    return b"%b%b\0" % ((len(fields) + 5).to_bytes(4, "little"), fields)


def document_end(buffer: bytes, start: int, limit: int) -> int:
    """Return the offset just past the document at ``start``, which must end by ``limit``.

    Raises ProtocolError if its length is wrong or its last byte is not zero.
    """
    if limit - start < 5:
        raise ProtocolError("a BSON document is cut off")
    (length,) = _int32(buffer, start)
    end: int = start + length
    if length < 5 or end > limit:
        raise ProtocolError(f"a BSON document claims {length} bytes of {limit - start}")
    if buffer[end - 1]:
        raise ProtocolError("a BSON document does not end with a zero byte")
    return end


def iter_elements(buffer: bytes, start: int = 0, limit: int | None = None) -> Iterator[Element]:
    """Yield the fields of the document at ``start`` in order; nested documents are not entered.

    The document must end by ``limit`` (the buffer's end if None). Raises ProtocolError on a wrong
    length, an unknown type, or a field that does not fit.
    """
    end = document_end(buffer, start, len(buffer) if limit is None else limit) - 1
    position = start + 4
    while position < end:
        kind = buffer[position]
        name_end = buffer.find(0, position + 1, end)
        if name_end < 0:
            raise ProtocolError("a BSON field's name does not end")
        value = name_end + 1
        position, name = _value_end(buffer, kind, value, end), buffer[position + 1 : name_end]
        yield Element(kind, name, value, position)


def raw_fields(document: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields of a document: the name of each, and its type, its name and its value.

    Raises ProtocolError as ``iter_elements`` does.
    """
    return [
        (name, document[start - len(name) - 2 : end])
        for _, name, start, end in iter_elements(document)
    ]


def find(buffer: bytes, name: bytes, start: int = 0, limit: int | None = None) -> Element | None:
    """Return the first field called ``name`` of the document at ``start``, or None.

    Raises ProtocolError as ``iter_elements`` does, up to and including that field.
    """
    for element in iter_elements(buffer, start, limit):
        if element.name == name:
            return element
    return None


def cut_document(buffer: bytes, most: int, start: int = 0, limit: int | None = None) -> bytes:
    """Return the document at ``start`` without the fields beyond its first ``most`` bytes.

    A document or array that is cut keeps its first fields, too. Raises ProtocolError as
    ``iter_elements`` does, up to the first field that is left out.
    """
    fields = bytearray()
    position = start + 4
    for element in iter_elements(buffer, start, limit):
        left = most - len(fields)
        if element.end - position <= left:
            fields += buffer[position : element.end]
            position = element.end
            continue
        if element.type in CONTAINERS and left > _LEAST_LEFT:
            head = buffer[position : element.start]
            # Halving the space bounds the recursion, however deep the document is.
            fields += head + cut_document(buffer, left // 2, element.start, element.end)
        break
    return document_of(bytes(fields))


def string_value(buffer: bytes, element: Element) -> bytes:
    """Return the UTF-8 bytes of a string field, without its length and its final zero byte."""
    return buffer[element.start + 4 : element.end - 1]


def read_cstring(buffer: bytes, start: int, limit: int) -> tuple[str, int]:
    """Return the zero-terminated text at ``start`` and the offset after its zero byte.

    Raises ProtocolError if there is no zero byte before ``limit``, or the text is not UTF-8.
    """
    end = buffer.find(0, start, limit)
    if end < 0:
        raise ProtocolError("a name does not end")
    try:
        return buffer[start:end].decode(), end + 1
    except UnicodeDecodeError as error:
        raise ProtocolError("a name is not UTF-8") from error


def nested_start(buffer: bytes, element: Element) -> int:
    """Return the start offset of the document inside a value of a type in NESTED."""
    if element.type == CODE_WITH_SCOPE:
        return _value_end(buffer, STRING, element.start + 4, element.end)
    return element.start


def _value_end(buffer: bytes, kind: int, start: int, limit: int) -> int:
    """Return the end offset of the value of type ``kind`` at ``start``, at most ``limit``."""
    if kind in CONTAINERS:
        return document_end(buffer, start, limit)
    try:
        end = value_end(buffer, kind, start)
    except MalformedValueError as error:
        raise ProtocolError(str(error)) from None
    except (ValueError, StructError):
        end = limit + 1
    if end > limit:
        raise ProtocolError(f"a BSON value of type {kind:#x} does not fit its document")
    if kind in TEXTS and (end - start < _LEAST_TEXT or buffer[end - 1]):
        raise ProtocolError("a BSON string has a wrong length")
    return end
