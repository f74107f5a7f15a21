"""The frames of replies to a client (docs/protocol.md#wire-protocol)."""

from collections.abc import Sequence

from router.server.request import Request
from shard_client.wire.documents import encode
from shard_client.wire.frames import MORE_TO_COME, build_op_reply, msg_header, with_ids

_AWAIT_CAPABLE, _QUERY_FAILURE = 0b1000, 0b0010


def reply_frame(
    request: Request,
    parts: Sequence[bytes],
    *,
    reply_id: int,
    response_to: int,
    more_to_come: bool = False,
) -> bytes:
    """Return the frame of a reply, of the kind of its request.

    Args:
        request: the request to answer.
        parts: the slices of the reply's body, which are joined here.
        reply_id: the reply's id.
        response_to: the id of the message that this reply responds to.
        more_to_come: another reply follows without a request.
    """
    if request.query is not None:
        return build_op_reply(b"".join(parts), request_id=reply_id, response_to=response_to)
    size = int.from_bytes(parts[0][:4], "little")  # the length that the body begins with
    flags = MORE_TO_COME if more_to_come else 0
    return b"".join((msg_header(size, reply_id, response_to, flags), *parts))


def relayed_frame(request: Request, reply: bytes) -> bytes:
    """Return another server's reply to a client's request, with the id that it responds to."""
    own_id = int.from_bytes(reply[4:8], "little", signed=True)
    return b"".join(with_ids(reply, request_id=own_id, response_to=request.request_id))


def query_failure(request: Request, reply_id: int, code: int, message: str) -> bytes:
    """Return the frame that refuses an OP_QUERY that is not a command."""
    document = encode({"$err": message, "code": code, "ok": 0.0})
    flags = _AWAIT_CAPABLE | _QUERY_FAILURE
    return build_op_reply(
        document, request_id=reply_id, response_to=request.request_id, flags=flags
    )
