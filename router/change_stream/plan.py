"""Commands for the shards and the config server (docs/design.md#opening-and-resuming and
docs/design.md#topology)."""

from collections.abc import Mapping
from typing import Any

from bson.timestamp import Timestamp

from router.change_stream.request import StreamRequest
from router.change_stream.resume_token import ResumeToken
from router.change_stream.stages import CHANGE_STREAM
from shard_client.wire.documents import decode

TokenDocument = Mapping[str, Any] | bytes
"""A resume token's document, decoded or raw."""


def shard_command(
    request: StreamRequest,
    *,
    start_at: Timestamp | None = None,
    start_after: TokenDocument | None = None,
    resume_after: TokenDocument | None = None,
    batch_size: int = 0,
) -> tuple[str, dict[str, Any]]:
    """Return the database and the ``aggregate`` command that open ``request`` on one shard.

    Exactly one starting point is given: ``start_at`` at the first opening, ``resume_after`` (that
    shard's own token document, decoded or raw) when its cursor is reopened after a failure,
    ``start_after`` when it is reopened after a swallowed invalidate.
    """
    options = {**request.change_stream_options, **_start(start_at, start_after, resume_after)}
    command = {
        "aggregate": 1 if request.collection is None else request.collection,
        "pipeline": [{CHANGE_STREAM: options}, *request.stages],
        "cursor": {"batchSize": batch_size},
        **request.extras,
        "readConcern": {"level": "majority"},
    }
    if request.read_preference is not None:
        command["$readPreference"] = request.read_preference
    return request.database, command


def topology_command(
    start_at: Timestamp | None = None,
    *,
    resume_after: TokenDocument | None = None,
    batch_size: int = 0,
) -> tuple[str, dict[str, Any]]:
    """Return the database and the command that watch ``config.shards`` on the config server."""
    options = {"allowToRunOnConfigDB": True, **_start(start_at, None, resume_after)}
    return "config", {
        "aggregate": "shards",
        "pipeline": [{CHANGE_STREAM: options}],
        "cursor": {"batchSize": batch_size},
        "readConcern": {"level": "majority"},
    }


def _start(
    start_at: Timestamp | None,
    start_after: TokenDocument | None,
    resume_after: TokenDocument | None,
) -> dict[str, Any]:
    resume = _document(resume_after)
    if resume is not None and ResumeToken.parse(resume).from_invalidate:
        # The cursor was reopened after an invalidate and failed before it advanced.
        start_after, resume = resume, None
    given = {
        "startAtOperationTime": start_at,
        "startAfter": _document(start_after),
        "resumeAfter": resume,
    }
    start = {name: value for name, value in given.items() if value is not None}
    if len(start) != 1:
        raise ValueError("a cursor is opened from exactly one starting point")
    return start


def _document(token: TokenDocument | None) -> Mapping[str, Any] | None:
    return decode(token) if isinstance(token, bytes) else token
