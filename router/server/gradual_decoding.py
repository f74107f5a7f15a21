"""Decode a large BSON document without blocking the event loop.

The decoder holds the interpreter's lock, so a thread would not help: 10 MB of small values take
seconds. A large document is therefore decoded in pieces, and the loop runs once after each.
"""

import asyncio
from collections.abc import Iterator
from struct import Struct
from typing import Any

from shard_client.errors import ProtocolError
from shard_client.wire.bson_slices import ARRAY, DOCUMENT, MAX_DEPTH, iter_elements
from shard_client.wire.documents import decode

PIECE_SIZE = 32 * 1024
"""Bytes decoded without a pause: about 10 ms for the costliest values."""

_RUN, _CODE_WITH_SCOPE = 0x00, 0x0F
_int32 = Struct("<i")


async def decode_gradually(document: bytes) -> dict[str, Any]:
    """Decode one document as ``documents.decode`` does, in pieces of about PIECE_SIZE bytes.

    A single string or binary value is one piece, however long. A large document in the form of a
    DBRef is decoded as a plain document. Raises ProtocolError.
    """
    if len(document) <= PIECE_SIZE:
        return decode(document)
    return await _decode_document(document, 0, len(document), 1)


async def _decode_document(buffer: bytes, start: int, limit: int, depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for kind, first, end in _pieces(buffer, start, limit):
        if kind == _RUN:
            fields = buffer[first:end]
            document |= decode(_int32.pack(len(fields) + 5) + fields + b"\0")
            await asyncio.sleep(0)
        else:
            name_end = buffer.index(0, first + 1)
            name = buffer[first + 1 : name_end].decode(errors="replace")
            document[name] = await _decode_nested(kind, buffer, name_end + 1, end, depth + 1)
    return document


async def _decode_array(buffer: bytes, start: int, limit: int, depth: int) -> list[Any]:
    values: list[Any] = []
    for kind, first, end in _pieces(buffer, start, limit):
        if kind == _RUN:
            # The decoder keeps the order of elements and ignores their names.
            items = buffer[first:end]
            array = b"\x04\0" + _int32.pack(len(items) + 5) + items + b"\0"
            values += decode(_int32.pack(len(array) + 5) + array + b"\0")[""]
            await asyncio.sleep(0)
        else:
            value = buffer.index(0, first + 1) + 1
            values.append(await _decode_nested(kind, buffer, value, end, depth + 1))
    return values


async def _decode_nested(kind: int, buffer: bytes, start: int, limit: int, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ProtocolError(f"a BSON document nests deeper than {MAX_DEPTH} levels")
    if kind == ARRAY:
        return await _decode_array(buffer, start, limit, depth)
    return await _decode_document(buffer, start, limit, depth)


def _pieces(buffer: bytes, start: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """Split the document at ``start`` into runs of fields (_RUN) and single large documents."""
    first = position = start + 4
    for element in iter_elements(buffer, start, limit):
        large = element.end - position > PIECE_SIZE
        if large and element.type == _CODE_WITH_SCOPE:
            raise ProtocolError(f"a code with scope of {element.end - position} bytes")
        if large and element.type in (DOCUMENT, ARRAY):
            if first < position:
                yield _RUN, first, position
            yield element.type, position, element.end
            first = element.end
        elif element.end - first >= PIECE_SIZE:
            yield _RUN, first, element.end
            first = element.end
        position = element.end
    if first < position:
        yield _RUN, first, position
