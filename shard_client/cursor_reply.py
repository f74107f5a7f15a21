"""Cursor replies of change streams as slices: split without decoding, rebuilt by joining.

An event's resume token is found at its fixed place at the front of the event, which is checked;
events that begin otherwise are scanned. Source: docs/protocol.md, sections 1 and 2.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from bson.timestamp import Timestamp

Event = tuple[bytes, bytes]
"""A sort key (the resume token's ``_data`` as bytes) and the event's raw BSON."""


class CursorBatch(NamedTuple):
    """One reply of a change stream's cursor, in slices of their own (no buffer is kept alive).

    ``pbrt`` is the raw postBatchResumeToken document (b"" if there is none), ``size`` the bytes of
    all events, ``cluster_time`` the raw $clusterTime document.
    """

    cursor_id: int
    events: list[Event]
    pbrt: bytes
    size: int
    cluster_time: bytes | None = None
    operation_time: Timestamp | None = None
    invalidated: bool = False
    namespace: str = ""


def slice_cursor_reply(body: bytes) -> CursorBatch:
    """Split the raw body of an aggregate's or getMore's reply.

    Raises CommandError if the reply says that the command failed, and ProtocolError if it is
    malformed or an event has no resume token.
    """
    raise NotImplementedError


def token_data(token: bytes) -> bytes:
    """Return the sort key of a raw resume token document: its ``_data`` as bytes.

    Raises ProtocolError if there is none.
    """
    raise NotImplementedError


def build_cursor_reply(
    batch_name: Literal["firstBatch", "nextBatch"],
    *,
    cursor_id: int,
    namespace: str,
    events: Sequence[bytes],
    pbrt: bytes,
    size: int | None = None,
    cluster_time: bytes | None = None,
    operation_time: Timestamp | None = None,
) -> list[bytes]:
    """Return the parts of the reply body that mongos would send, to be joined.

    ``size`` is the bytes of all ``events`` if the caller knows it; ``pbrt`` and ``cluster_time``
    are raw documents; what is empty or None is left out. The order of fields is mongos's own,
    which differs between aggregate (firstBatch) and getMore (nextBatch).
    """
    raise NotImplementedError
