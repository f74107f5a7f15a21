"""Decode a large BSON document without blocking the event loop.

The decoder holds the interpreter's lock, so a thread would not help: 10 MB of small values take
seconds. A large document is therefore decoded in pieces, each in a turn of the loop.

The large stages of a large pipeline are not decoded at all: shards check their contents, and each
command for them copies their bytes. Even to free what was decoded of 16 MB would hold up the loop.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from router.request.accepted import OPAQUE
from shard_client.bson.values import ARRAY, DOCUMENT
from shard_client.errors import ProtocolError
from shard_client.wire.bson_slices import MAX_DEPTH, Element, document_of, iter_elements
from shard_client.wire.documents import CODEC, decode

PIECE_SIZE = 16 * 1024
"""Bytes decoded without a pause: about 5 ms for the costliest values."""

Turn = Callable[[], Awaitable[None]]

RUN = 0x00
"""The kind of a piece that is a run of fields; that of any other is its type in BSON."""

LARGE_PIPELINE = 1024 * 1024
"""Bytes from which the large stages of a pipeline stay raw."""

_LARGE_STAGE = 1024
_CODE_WITH_SCOPE = 0x0F
_OPAQUE_NAMES = frozenset(name.encode() for name in OPAQUE)
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
    decoded: dict[str, Any] = await _decode(DOCUMENT, document, 0, len(document), 1, turn)
    return decoded


async def _decode(kind: int, buffer: bytes, start: int, limit: int, depth: int, turn: Turn) -> Any:
    """Decode the document or the array at ``start``, whose type is ``kind``, in pieces."""
    if depth > MAX_DEPTH:
        raise ProtocolError(f"a BSON document nests deeper than {MAX_DEPTH} levels")
    values: Any = [] if kind == ARRAY else {}
    for piece, first, end in pieces(buffer, start, limit):
        if piece == _CODE_WITH_SCOPE:
            raise ProtocolError(f"a code with scope of {end - first} bytes")
        if piece == RUN:
            run = decode_run(kind, buffer[first:end])
            if kind == ARRAY:
                values += run
            else:
                values |= run
            await turn()
            continue
        name_end = buffer.index(0, first + 1)
        name = buffer[first + 1 : name_end].decode(errors="replace")
        inner = buffer, name_end + 1, end, depth + 1, turn
        if kind == ARRAY:
            values.append(await _decode(piece, *inner))
        elif name == "pipeline" and piece == ARRAY and end - first >= LARGE_PIPELINE:
            values[name] = await _decode_pipeline(*inner)
        else:
            values[name] = await _decode(piece, *inner)
    return values


def decode_run(kind: int, fields: bytes, options: CodecOptions[dict[str, Any]] = CODEC) -> Any:
    """Return the values of a run of fields of a document, as a dict, or of an array, as a list.

    ``kind`` is DOCUMENT or ARRAY, ``fields`` the run as ``pieces`` shows it.
    """
    run = document_of(fields)
    if kind == DOCUMENT:
        return decode(run, options)
    # The decoder keeps the order of elements and ignores their names.
    return decode(document_of(b"\x04\0" + run), options)[""]


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
                await _decode(stage.type, buffer, stage.start, stage.end, depth + 1, turn)
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
    if field is None or field.type != DOCUMENT or field.end != stage.end - 1:
        return False
    return field.name in _OPAQUE_NAMES


def pieces(buffer: bytes, start: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """Split the document or the array at ``start``, which must end by ``limit``, into pieces.

    Yields the kind of each, and where it begins and ends: runs of fields of about PIECE_SIZE bytes,
    and fields that are larger and hold a document. Raises ProtocolError: it is malformed.
    """
    first = position = start + 4
    for element in iter_elements(buffer, start, limit):
        large = element.end - position > PIECE_SIZE
        if large and element.type in (DOCUMENT, ARRAY, _CODE_WITH_SCOPE):
            if first < position:
                yield RUN, first, position
            yield element.type, position, element.end
            first = element.end
        elif element.end - first >= PIECE_SIZE:
            yield RUN, first, element.end
            first = element.end
        position = element.end
    if first < position:
        yield RUN, first, position
