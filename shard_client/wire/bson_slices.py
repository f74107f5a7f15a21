"""Walk raw BSON without decoding it.

A document is identified by its buffer and the offset of its length. Positions are offsets into that
buffer, and values are not copied. Source: bsonspec.org; docs/protocol.md#wire-protocol.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from shard_client.bson.values import (
    BINARY,
    CODE_WITH_SCOPE,
    CONTAINERS,
    DB_POINTER,
    FIXED,
    REGEX,
    TEXTS,
)
from shard_client.errors import ProtocolError

MAX_DEPTH = 200
"""Maximum nesting depth: servers accept 180 levels from users and add a few of their own."""

_LEAST_LEFT = 64

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
        value_end = _value_end(buffer, kind, value, end)
        yield Element(kind, buffer[position + 1 : name_end], value, value_end)
        position = value_end


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
            # Halves, so that the depth of a document does not count.
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
        return _string_end(buffer, element.start + 4, element.end)
    return element.start


def _value_end(buffer: bytes, kind: int, start: int, limit: int) -> int:
    """Return the end offset of the value of type ``kind`` at ``start``, at most ``limit``."""
    fixed = FIXED.get(kind)
    if fixed is not None:
        end = start + fixed
    elif kind in CONTAINERS:
        return document_end(buffer, start, limit)
    elif kind in TEXTS:
        end = _string_end(buffer, start, limit)
    elif kind == BINARY:
        length = _length(buffer, start, limit)
        end = start + 5 + length
    elif kind == REGEX:  # pattern and options, each zero-terminated
        middle = buffer.find(0, start, limit)
        end = buffer.find(0, middle + 1, limit) + 1 if middle >= 0 else 0
    elif kind == DB_POINTER:  # a string and an ObjectId
        end = _string_end(buffer, start, limit) + 12
    elif kind == CODE_WITH_SCOPE:  # the total length, a string, a document
        length = _length(buffer, start, limit)
        end = start + length
        if end > limit or document_end(buffer, _string_end(buffer, start + 4, end), end) != end:
            raise ProtocolError("a BSON code with scope has a wrong length")
    else:
        raise ProtocolError(f"unknown BSON type 0x{kind:02x}")
    if not start <= end <= limit:
        raise ProtocolError(f"a BSON value of type 0x{kind:02x} does not fit its document")
    return end


def _length(buffer: bytes, start: int, limit: int) -> int:
    if limit - start < 4:
        raise ProtocolError("a BSON length is cut off")
    (length,) = _int32(buffer, start)
    if length < 0:
        raise ProtocolError("a BSON length is negative")
    return int(length)


def _string_end(buffer: bytes, start: int, limit: int) -> int:
    length = _length(buffer, start, limit)
    end = start + 4 + length
    if length < 1 or end > limit or buffer[end - 1]:
        raise ProtocolError("a BSON string has a wrong length")
    return end
