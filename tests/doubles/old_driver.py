"""The message in which an old driver sends its first hello."""

from struct import pack

from shard_client.wire.frames import OP_QUERY


def build_op_query(namespace: str, query: bytes, *, request_id: int) -> bytes:
    """Return an OP_QUERY frame for one document."""
    content = namespace.encode() + pack("<xii", 0, -1) + query
    return pack("<iiiii", 20 + len(content), request_id, 0, OP_QUERY, 0) + content
