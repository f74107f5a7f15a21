"""Replies on their way to a client: framed, compressed as the client did, written in one go."""

from collections.abc import Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

from router.commands.node import Counters
from router.server.off_loop import off_loop
from router.server.request import Request
from shard_client.wire.compression import NEVER_COMPRESSED
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import (
    MORE_TO_COME,
    build_msg,
    build_op_reply,
    build_reply_parts,
    compress_frame,
    encode,
    parse_op_msg,
    with_ids,
)

_ids = count(1)
_AWAIT_CAPABLE, _QUERY_FAILURE = 0b1000, 0b0010
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class ReplyWriter:
    """Writes replies to one client (docs/protocol.md, section 1).

    A large reply is compressed off the loop; replies go out in the order in which they are sent,
    since the connection waits for each.

    Args:
        stream: the client's connection.
        counters: where bytes are counted.
    """

    def __init__(self, stream: FrameStream, counters: Counters) -> None:
        self._stream = stream
        self._counters = counters

    async def send(
        self,
        request: Request,
        parts: list[bytes],
        *,
        response_to: int,
        more_to_come: bool = False,
    ) -> int:
        """Send a reply body given in slices and return the reply's id.

        Args:
            request: what is answered; one that wants no reply gets none.
            parts: the body's slices, which are joined and written once.
            response_to: the id of the message that this one follows.
            more_to_come: another reply follows by itself.

        Raises:
            NetworkError: the client is gone.
        """
        reply_id = next(_ids) & 0x7FFFFFFF
        if request.query is not None:
            frame = build_op_reply(b"".join(parts), request_id=reply_id, response_to=response_to)
            await self._write(request, frame)
        elif request.wants_reply:
            flags = MORE_TO_COME if more_to_come else 0
            framed = build_reply_parts(
                parts, request_id=reply_id, response_to=response_to, flags=flags
            )
            await self._write(request, b"".join(framed))
        return reply_id

    async def send_document(
        self,
        request: Request,
        document: Mapping[str, Any],
        *,
        response_to: int,
        more_to_come: bool = False,
    ) -> int:
        """Encode a reply and send it as ``send`` does."""
        return await self.send(
            request, [encode(document)], response_to=response_to, more_to_come=more_to_come
        )

    async def relay(
        self, request: Request, reply: bytes, *, first: bool, added: Mapping[str, Any] = _NOTHING
    ) -> None:
        """Pass on an upstream's reply frame unchanged but for the id that it responds to.

        Args:
            request: what the client asked.
            reply: the whole frame, not compressed.
            first: whether it answers the client's message, not the reply before it.
            added: what a fail point puts into the reply, usually nothing.

        Raises:
            NetworkError: the client is gone.
        """
        if added:
            reply = _with_fields(reply, added)
        if first:
            own_id = int.from_bytes(reply[4:8], "little", signed=True)
            reply = with_ids(reply, request_id=own_id, response_to=request.request_id)
        await self._write(request, reply)

    async def refuse_query(self, request: Request, code: int, message: str) -> None:
        """Answer an OP_QUERY that is no command with a query failure."""
        document = encode({"$err": message, "code": code, "ok": 0.0})
        frame = build_op_reply(
            document,
            request_id=next(_ids) & 0x7FFFFFFF,
            response_to=request.request_id,
            flags=_AWAIT_CAPABLE | _QUERY_FAILURE,
        )
        await self._write(request, frame)

    async def _write(self, request: Request, frame: bytes) -> None:
        if request.compressor is not None and request.name not in NEVER_COMPRESSED:
            frame = await off_loop(len(frame), compress_frame, frame, request.compressor)
        request.replied = True
        self._counters.bytes_out += len(frame)
        self._stream.write(frame)


def _with_fields(reply: bytes, added: Mapping[str, Any]) -> bytes:
    message = parse_op_msg(reply)
    body = encode({**added, **message.document()})
    reply_id = int.from_bytes(reply[4:8], "little", signed=True)
    return build_msg(body, request_id=reply_id, flags=message.flags & MORE_TO_COME)
