"""OP_QUERY and OP_REPLY: how a server answers the first hello of old drivers.

The functions take and return whole frames, header included; ``frames`` checks the header. Source:
docs/protocol.md#wire-protocol.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Any

from shard_client.errors import ProtocolError
from shard_client.wire.bson_slices import document_end, read_cstring
from shard_client.wire.documents import decode

OP_REPLY, OP_QUERY = 1, 2004

_op_query = Struct("<iiiii")
_skip_and_batch_size = Struct("<ii")
_op_reply = Struct("<iiiiiqii")


@dataclass(frozen=True, slots=True)
class OpQuery:
    """An OP_QUERY: a namespace and one raw query document."""

    flags: int
    namespace: str
    skip: int
    batch_size: int
    query: bytes
    fields: bytes | None = None

    def document(self) -> dict[str, Any]:
        """Return the decoded query; raises ProtocolError if it is not valid BSON."""
        return decode(self.query)


def parse_op_query(frame: bytes) -> OpQuery:
    """Parse an OP_QUERY frame; raises ProtocolError."""
    end = len(frame)
    if end < _op_query.size:
        raise ProtocolError("an OP_QUERY is cut off")
    _, _, _, _, flags = _op_query.unpack_from(frame)
    namespace, position = read_cstring(frame, _op_query.size, end)
    if end - position < _skip_and_batch_size.size:
        raise ProtocolError("an OP_QUERY is cut off")
    skip, batch_size = _skip_and_batch_size.unpack_from(frame, position)
    start = position + _skip_and_batch_size.size
    query_end = document_end(frame, start, end)
    query, fields = frame[start:query_end], None
    if query_end < end:
        if document_end(frame, query_end, end) != end:
            raise ProtocolError("an OP_QUERY is longer than its documents")
        fields = frame[query_end:]
    return OpQuery(flags, namespace, skip, batch_size, query, fields)


def build_op_reply(document: bytes, *, request_id: int, response_to: int, flags: int = 8) -> bytes:
    """Return an OP_REPLY frame that answers an OP_QUERY with one raw document.

    ``flags`` bit 1 is queryFailure, bit 3 awaitCapable, which servers always set.
    """
    length = _op_reply.size + len(document)
    head = _op_reply.pack(length, request_id, response_to, OP_REPLY, flags, 0, 0, 1)
    return head + document
