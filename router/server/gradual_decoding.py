"""Decode a large BSON document without blocking the event loop.

The decoder holds the interpreter's lock, so a thread would not help: 10 MB of small values take
seconds. A large document is therefore decoded in pieces, each in a turn of the loop.

The large stages of a large pipeline are not decoded at all: shards check their contents, and each
command for them copies their bytes. Even to free what was decoded of 16 MB would hold up the loop.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from bson.raw_bson import RawBSONDocument

from router.request.accepted import OPAQUE
from shard_client.bson.values import ARRAY, DOCUMENT
from shard_client.errors import ProtocolError
from shard_client.wire.bson_slices import MAX_DEPTH, Element, document_of, iter_elements
from shard_client.wire.documents import CODEC, decode

PIECE_SIZE = 16 * 1024
"""Bytes decoded without a pause: about 5 ms for the costliest values."""

Turn = Callable[[], Awaitable[None]]

LARGE_PIPELINE = 1024 * 1024
"""Bytes from which the large stages of a pipeline stay raw."""

_LARGE_STAGE = 1024
_RUN, _CODE_WITH_SCOPE = 0x00, 0x0F
_NAMES = frozenset(name.encode() for name in OPAQUE)
_RAW = CODEC.with_options(document_class=RawBSONDocument)


async def decode_gradually(document: bytes, turn: Turn) -> dict[str, Any]:
    """Decode one document as ``documents.decode`` does, in pieces of about PIECE_SIZE bytes.

    ``turn`` is awaited after each piece.

    A single string or binary value is one piece, however long. A large document in the form of a
    DBRef is decoded as a plain document. In an array ``pipeline`` of LARGE_PIPELINE bytes or more,
    stages above a KiB whose contents only shards check become RawBSONDocuments. Raises
    ProtocolError.
    """
    if len(document) <= PIECE_SIZE:
        return decode(document)
    return await _decode_document(document, 0, len(document), 1, turn)


async def _decode_document(
    buffer: bytes, start: int, limit: int, depth: int, turn: Turn
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for kind, first, end in _pieces(buffer, start, limit):
        if kind == _RUN:
            fields = buffer[first:end]
            document |= decode(document_of(fields))
            await turn()
        else:
            name_end = buffer.index(0, first + 1)
            name = buffer[first + 1 : name_end].decode(errors="replace")
            if name == "pipeline" and kind == ARRAY and end - first >= LARGE_PIPELINE:
                document[name] = await _decode_pipeline(buffer, name_end + 1, end, depth + 1, turn)
                continue
            document[name] = await _decode_nested(kind, buffer, name_end + 1, end, depth + 1, turn)
    return document


async def _decode_array(buffer: bytes, start: int, limit: int, depth: int, turn: Turn) -> list[Any]:
    values: list[Any] = []
    for kind, first, end in _pieces(buffer, start, limit):
        if kind == _RUN:
            # The decoder keeps the order of elements and ignores their names.
            items = buffer[first:end]
            values += decode(document_of(b"\x04\0" + document_of(items)))[""]
            await turn()
        else:
            value = buffer.index(0, first + 1) + 1
            values.append(await _decode_nested(kind, buffer, value, end, depth + 1, turn))
    return values


async def _decode_pipeline(
    buffer: bytes, start: int, limit: int, depth: int, turn: Turn
) -> list[Any]:
    stages: list[Any] = []
    for stage in iter_elements(buffer, start, limit):
        size = stage.end - stage.start
        if stage.type == DOCUMENT and size > _LARGE_STAGE and _is_opaque(buffer, stage):
            stages.append(RawBSONDocument(buffer[stage.start : stage.end], _RAW))
        elif stage.type in (DOCUMENT, ARRAY):
            stages.append(
                await _decode_nested(stage.type, buffer, stage.start, stage.end, depth + 1, turn)
            )
        else:
            element = b"\0" + buffer[stage.start : stage.end]
            raw = bytes((stage.type,)) + element
            stages.append(decode(document_of(raw))[""])
        if size > _LARGE_STAGE:
            await turn()
    return stages


def _is_opaque(buffer: bytes, stage: Element) -> bool:
    """Return whether a stage has one field only, a document that shards check."""
    field = next(iter_elements(buffer, stage.start, stage.end), None)
    return (
        field is not None
        and field.type == DOCUMENT
        and field.name in _NAMES
        and field.end == stage.end - 1
    )


async def _decode_nested(
    kind: int, buffer: bytes, start: int, limit: int, depth: int, turn: Turn
) -> Any:
    if depth > MAX_DEPTH:
        raise ProtocolError(f"a BSON document nests deeper than {MAX_DEPTH} levels")
    if kind == ARRAY:
        return await _decode_array(buffer, start, limit, depth, turn)
    return await _decode_document(buffer, start, limit, depth, turn)


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
