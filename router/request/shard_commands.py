"""The commands for the shards and the config server that serve a stream.

Source: docs/design.md#topology, docs/design.md#idle-shards.
"""

from collections.abc import Mapping
from typing import Any, Final

from bson.timestamp import Timestamp

from router.request.accepted import CHANGE_STREAM, stage_name
from router.request.event_conditions import early_part
from router.request.start_options import STARTS
from router.request.stream_request import StreamRequest
from shard_client.bson.resume_token import cluster_time_of, is_invalidate, next_tick
from shard_client.remote_cursor.cursor_reply import token_key
from shard_client.wire.documents import decode

_IMAGES: Final = {"fullDocument": "default", "fullDocumentBeforeChange": "off"}
"""The options that add documents which an event itself lacks, and the values that add none."""

_COMPARED_ELSEWHERE: Final = frozenset({"lsid", "txnNumber"})
"""Fields that servers compare in the oplog entry or in the event, which may differ in them.

Which of both depends on the whole pipeline, so the two cursors might filter differently by them
(docs/protocol.md#differences).
"""


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


def progress_command(
    database: str, command: Mapping[str, Any], after: bytes
) -> tuple[str, dict[str, Any]]:
    """Return the database and the ``aggregate`` command of a progress cursor.

    Beyond the resume token ``after`` (raw BSON), it passes every event that the cursor opened by
    ``command`` passes, and possibly others. It keeps conditions that depend on the event alone
    (``event_conditions``), but on no image and no session (``lsid``, ``txnNumber``), and the stages
    before them that only remove fields. It drops all other conditions, stages, lookups and images,
    and returns only the ``_id`` of each event. It starts at the token's cluster time, inclusive, so
    that tokens of fragments and invalidates need no special case.
    """
    stream, *stages = command["pipeline"]
    wanted: Mapping[str, Any] = stream[CHANGE_STREAM]
    images = {name for name, none in _IMAGES.items() if wanted.get(name, none) != none}
    options = {name: value for name, value in wanted.items() if name not in {*STARTS, *images}}
    key = token_key(after)
    time = cluster_time_of(key)
    # An invalidate closes every cursor that reads it again; no other event has its time.
    options["startAtOperationTime"] = next_tick(time) if is_invalidate(key.decode()) else time
    early, _whole = early_part(stages, changed=images | _COMPARED_ELSEWHERE, needed={"_id"})
    while early and stage_name(early[-1]) != "$match":
        early = early[:-1]
    pipeline = [{CHANGE_STREAM: options}, *early, {"$project": {"_id": 1}}]
    return database, {**command, "pipeline": pipeline, "cursor": {"batchSize": 0}}
