"""Write replies to a client: framed, compressed as the request was, in a single write."""

from itertools import count

from router.commands.call import Counters
from router.server.request import Request, off_loop
from shard_client.wire.compression import NEVER_COMPRESSED
from shard_client.wire.documents import encode
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import (
    MORE_TO_COME,
    build_op_reply,
    compress_frame,
    msg_header,
    with_ids,
)

_ids = count(1)
_AWAIT_CAPABLE, _QUERY_FAILURE = 0b1000, 0b0010


class ReplyWriter:
    """Writes replies to one client (docs/protocol.md#wire-protocol).

    A large reply is compressed off the loop. Replies keep the order in which they are sent, since
    the connection awaits each.

    Args:
        stream: the client's connection.
        counters: the counters for the bytes written.
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
            request: the request to answer; nothing is sent if it wants no reply.
            parts: the body's slices, which are joined and written once.
            response_to: the id of the message that this reply responds to.
            more_to_come: another reply follows without a request.

        Raises:
            NetworkError: the client has disconnected.
        """
        reply_id = next(_ids) & 0x7FFFFFFF
        if request.query is not None:
            frame = build_op_reply(b"".join(parts), request_id=reply_id, response_to=response_to)
            await self._write(request, frame)
        elif request.wants_reply:
            flags = MORE_TO_COME if more_to_come else 0
            size = int.from_bytes(parts[0][:4], "little")  # the length that the body begins with
            header = msg_header(size, reply_id, response_to, flags)
            await self._write(request, b"".join((header, *parts)))
        return reply_id

    async def relay(self, request: Request, reply: bytes, *, first: bool) -> None:
        """Relay another server's reply frame, changing only the id that it responds to.

        Args:
            request: the client's request.
            reply: the whole frame, uncompressed.
            first: whether the frame responds to the client's message rather than to the previous
                reply.

        Raises:
            NetworkError: the client has disconnected.
        """
        if first:
            own_id = int.from_bytes(reply[4:8], "little", signed=True)
            reply = b"".join(with_ids(reply, request_id=own_id, response_to=request.request_id))
        await self._write(request, reply)

    async def refuse_query(self, request: Request, code: int, message: str) -> None:
        """Answer an OP_QUERY that is not a command with a query failure."""
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
