"""A client's message, parsed only as far as its handling requires."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, ParamSpec, TypeVar

import anyio

from router.bson_text import render
from router.request.gradual_decoding import decode_gradually
from router.request.recognition import explained
from shard_client.errors import CommandError, ErrorCode, ProtocolError
from shard_client.wire.bson_slices import document_of, find, iter_elements
from shard_client.wire.documents import decode
from shard_client.wire.frames import (
    BODY_OFFSET,
    MAX_MESSAGE_SIZE,
    MAX_REPLY_DOCUMENT_SIZE,
    MORE_TO_COME,
    OP_COMPRESSED,
    OP_MSG,
    OP_QUERY,
    OpQuery,
    decompress_frame,
    find_body,
    parse_message,
)

MOST_OWN = 1024 * 1024
"""Most bytes of a command that the router answers itself, besides its pipeline."""

_MOST_IN_QUERY = 64 * 1024
_header = Struct("<iiiiI")
_uncompressed_size = Struct("<I")
_BODY_SECTION = b"\0"
_LONGEST_NAME = 128
_LONGEST_SHOWN = 1024

INLINE_SIZE = 64 * 1024
"""Most bytes compressed or decompressed on the loop: two milliseconds with zlib."""

_THREADS = anyio.CapacityLimiter(2)
"""Limits the threads that compress and decompress."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class ClientMessage:
    """One message of a client, whole and uncompressed in ``frame``.

    ``name`` is the command's name; a command that is passed to the upstream is parsed no further.
    ``compressor`` is the id of the compressor that the client used, None if it used none.
    ``replied`` is set with the first reply.
    """

    frame: bytes
    request_id: int
    flags: int
    name: str
    compressor: int | None = None
    query: OpQuery | None = None
    replied: bool = False
    _body: bytes | None = None

    @property
    def wants_reply(self) -> bool:
        """Whether the client waits for an answer."""
        return not self.flags & MORE_TO_COME

    def body(self) -> bytes:
        """Return the raw command without its document sequences, which the router never uses.

        Raises:
            ProtocolError: the message is malformed.
            CommandError: BSONObjectTooLarge, with mongos's message.
        """
        if self.query is not None:
            return self.query.query
        if self._body is not None:
            return self._body
        start, end = find_body(self.frame)
        body = self.frame[start:end]
        if len(body) > MAX_REPLY_DOCUMENT_SIZE:
            size = len(body)
            raise CommandError(
                ErrorCode.BSONObjectTooLarge,
                f"BSONObj size: {size} (0x{size:X}) is invalid. Size must be between 0 and "
                f"{MAX_REPLY_DOCUMENT_SIZE}(16MB) First element: {_first_element(body)}",
            )
        self._body = body
        return body

    async def command(
        self, turn: Callable[[], Awaitable[None]], *, passes: bool = False
    ) -> dict[str, Any]:
        """Return the decoded command, without blocking the loop.

        ``turn`` waits for a turn of the loop between the pieces of a large command. One that
        ``passes`` through to the upstream can be larger. Raises ProtocolError: the message is
        malformed; CommandError: BSONObjectTooLarge.
        """
        if self.query is not None:
            return _unwrapped(self.query.document())
        body = self.body()
        small = passes or len(body) <= MOST_OWN
        if not small and (size := self._size_besides_pipeline(body)) > MOST_OWN:
            raise CommandError(
                ErrorCode.BSONObjectTooLarge,
                f"the command {self.name} has {size} bytes; the router accepts {MOST_OWN} at most "
                "for a command that it answers itself, besides its pipeline",
            )
        return await decode_gradually(body, turn)

    def _size_besides_pipeline(self, body: bytes) -> int:
        if self.name not in ("aggregate", "explain"):
            return len(body)
        pipeline = find(body, b"pipeline", explained(body)[0])
        return len(body) - (0 if pipeline is None else pipeline.end - pipeline.start)

    def database(self, command: dict[str, Any]) -> str:
        """Return the command's database; raises CommandError."""
        if self.query is not None:
            return self.query.namespace.partition(".")[0]
        try:
            database = command["$db"]
        except KeyError:
            raise CommandError(40571, "OP_MSG requests require a $db argument") from None
        if not isinstance(database, str):
            raise CommandError(40572, "$db must be a string")
        return database


def uncompressed_size(frame: bytes, most: int) -> int:
    """Return the size in bytes of what is compressed in a frame, 0 if nothing is.

    The frame's first 24 bytes suffice.

    Raises ProtocolError: it is more than ``most``.
    """
    if int.from_bytes(frame[12:16], "little") != OP_COMPRESSED or len(frame) < 24:
        return 0
    size = int(_uncompressed_size.unpack_from(frame, 20)[0])
    if size > most:
        raise ProtocolError(f"a message of {size} bytes is too long here")
    return size


async def read_message(frame: bytes) -> ClientMessage:
    """Parse a client's frame; a large compressed frame is decompressed off the loop.

    Raises ProtocolError: it is malformed, or has an opcode that servers no longer accept.
    """
    compressor = None
    if int.from_bytes(frame[12:16], "little") == OP_COMPRESSED:
        compressor = frame[24] if len(frame) > 24 else None
        size = uncompressed_size(frame, MAX_MESSAGE_SIZE)
        frame = await off_loop(max(size, len(frame)), decompress_frame, frame)
    if len(frame) < _header.size:
        raise ProtocolError("a message is cut off")
    _length, request_id, _response_to, op_code, flags = _header.unpack_from(frame)
    if op_code == OP_MSG:
        start = BODY_OFFSET
        if frame[start - 1 : start] != _BODY_SECTION:
            start, _end = find_body(frame)
        name = _name_at(frame, start)
        return ClientMessage(frame, request_id, flags, name, compressor)
    if op_code == OP_QUERY:
        if len(frame) > _MOST_IN_QUERY:
            raise ProtocolError(f"an OP_QUERY of {len(frame)} bytes is too long")
        query = parse_message(frame).payload
        assert isinstance(query, OpQuery)
        name = next(iter(_unwrapped(query.document())), "")
        return ClientMessage(frame, request_id, 0, name, compressor, query)
    raise ProtocolError(f"opcode {op_code} is not answered")


def _unwrapped(document: dict[str, Any]) -> dict[str, Any]:
    wrapped = document.get("$query", document.get("query"))
    return wrapped if isinstance(wrapped, dict) else document


def _name_at(buffer: bytes, body: int) -> str:
    """Return the name of the first field of the document at ``body``, empty if there is none."""
    start = body + 5
    end = buffer.find(b"\0", start, start + _LONGEST_NAME)
    if end < 0 or not buffer[start - 1 : start].strip(b"\0"):
        return ""
    return buffer[start:end].decode("utf-8", "replace")


def _first_element(body: bytes) -> str:
    """Return a document's first field as servers print it, or its name if the value is long."""
    element = next(iter_elements(body), None)
    if element is None:
        return "EOO"
    name = element.name.decode(errors="replace")
    if element.end - element.start > _LONGEST_SHOWN:
        return name
    field = bytes((element.type,)) + body[4 + 1 : element.end]
    return f"{name}: {render(decode(document_of(field))[name])}"


async def off_loop(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work``, in a thread if ``size`` is large; return its result or raise its exception.

    Compression releases the interpreter's lock. Up to INLINE_SIZE bytes a thread costs more than
    it saves.

    ``size`` is the number of bytes that ``work`` handles. A cancelled caller does not wait for the
    thread; the result is dropped.
    """
    if size <= INLINE_SIZE:
        return work(*args, **kwargs)
    return await anyio.to_thread.run_sync(
        partial(work, *args, **kwargs), limiter=_THREADS, abandon_on_cancel=True
    )
