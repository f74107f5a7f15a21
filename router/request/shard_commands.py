"""Commands for the shards and the config server (docs/design.md#opening-and-resuming and
docs/design.md#topology)."""

from typing import Any

from bson.timestamp import Timestamp

from router.request.stages import CHANGE_STREAM
from router.request.stream_request import StreamRequest
from shard_client.bson.resume_token import is_invalidate
from shard_client.wire.documents import decode


def shard_command(request: StreamRequest, start: Timestamp | bytes) -> tuple[str, dict[str, Any]]:
    """Return the database and the ``aggregate`` command that open ``request`` on one shard.

    ``start`` is a cluster time at the first opening, and the shard's own token (raw BSON) when its
    cursor is reopened, after a failure or a skipped invalidate.
    """
    command = {
        "aggregate": 1 if request.collection is None else request.collection,
        "pipeline": [
            {CHANGE_STREAM: {**request.change_stream_options, **_start(start)}},
            *request.stages,
        ],
        "cursor": {"batchSize": 0},
        **request.extras,
        "readConcern": {"level": "majority"},
    }
    if request.read_preference is not None:
        command["$readPreference"] = request.read_preference
    return request.database, command


def topology_command(start: Timestamp | bytes) -> tuple[str, dict[str, Any]]:
    """Return the database and the command that watch ``config.shards`` on the config server."""
    return "config", {
        "aggregate": "shards",
        "pipeline": [{CHANGE_STREAM: {"allowToRunOnConfigDB": True, **_start(start)}}],
        "cursor": {"batchSize": 0},
        "readConcern": {"level": "majority"},
    }


def _start(start: Timestamp | bytes) -> dict[str, Any]:
    if isinstance(start, Timestamp):
        return {"startAtOperationTime": start}
    token = decode(start)
    # A cursor that was reopened after an invalidate may fail before it has advanced.
    after_invalidate = is_invalidate(token["_data"])
    return {"startAfter" if after_invalidate else "resumeAfter": token}
