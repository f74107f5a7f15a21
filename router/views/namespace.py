"""Namespaces, and the events with which their change streams end."""

from typing import Any, Final, NamedTuple

import bson

from shard_client.bson.resume_token import of_invalidate
from shard_client.errors import ProtocolError
from shard_client.remote_cursor.cursor_reply import token_of
from shard_client.wire.documents import decode

RENAME: Final = b"rename"
_END_A_COLLECTION: Final = frozenset({b"drop", RENAME, b"dropDatabase"})
_END_A_DATABASE: Final = frozenset({b"dropDatabase"})


class Namespace(NamedTuple):
    """A collection, or a database if ``collection`` is None."""

    database: bytes
    collection: bytes | None

    @property
    def ending_operations(self) -> frozenset[bytes]:
        """The operations after which a stream of this namespace ends (docs/protocol.md#events)."""
        return _END_A_DATABASE if self.collection is None else _END_A_COLLECTION


def made_up_invalidate(event: bytes) -> bytes:
    """Return the invalidate that follows an event which ends a stream (docs/protocol.md#events).

    Raises ValueError if the event is malformed.
    """
    try:
        token, fields = decode(token_of(event)), decode(event)
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    data = of_invalidate(str(token["_data"]).encode("ascii")).decode("ascii")
    invalidate: dict[str, Any] = {"_id": {**token, "_data": data}, "operationType": "invalidate"}
    for name in ("clusterTime", "wallTime"):
        if name in fields:
            invalidate[name] = fields[name]
    return bson.encode(invalidate)
