"""The messages in which an old driver exchanges its first hello."""

from struct import Struct, pack

from shard_client.wire.frames import OP_QUERY, OP_REPLY

_op_reply = Struct("<iiiiiqii")


def build_op_query(namespace: str, query: bytes, *, request_id: int) -> bytes:
    """Return an OP_QUERY frame for one document."""
    content = namespace.encode() + pack("<xii", 0, -1) + query
    return pack("<iiiii", 20 + len(content), request_id, 0, OP_QUERY, 0) + content


def op_reply_document(frame: bytes, *, response_to: int) -> bytes:
    """Return the document of an OP_REPLY, after a check of its header."""
    length, _, responded, op_code, flags, cursor_id, start, count = _op_reply.unpack_from(frame)
    assert (length, responded, op_code) == (len(frame), response_to, OP_REPLY)
    assert (flags, cursor_id, start, count) == (8, 0, 0, 1)
    return frame[_op_reply.size :]
