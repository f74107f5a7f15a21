"""The change stream of a progress cursor, which reports a shard's progress.

docs/design.md#idle-shards.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.change_stream.options import STARTS
from router.change_stream.resume_token import ResumeToken, cluster_time_of
from router.change_stream.stages import CHANGE_STREAM, stage_name
from shard_client.cluster_clock import next_tick
from shard_client.remote_cursor.cursor_reply import token_data

_IMAGES: Final = {"fullDocument": "default", "fullDocumentBeforeChange": "off"}
"""The options that add documents which an event itself lacks, and the values that add none."""

_LOGICAL: Final = frozenset({"$and", "$or", "$nor"})
_OF_A_VALUE: Final = frozenset(
    {
        "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$type", "$mod",
        "$regex", "$options", "$all", "$size",
    }
)  # fmt: skip
"""Operators of a ``$match`` whose result depends only on the field."""


def progress_command(
    database: str, command: Mapping[str, Any], after: bytes
) -> tuple[str, dict[str, Any]]:
    """Return the database and the ``aggregate`` command of a progress cursor.

    Beyond the resume token ``after`` (raw BSON), it passes every event that the cursor
    opened by ``command`` passes, and possibly others: it keeps the leading ``$match`` stages that
    depend on the event alone, and drops all other stages, lookups and images. It returns only the
    ``_id`` of each event. It starts at the token's cluster time, inclusive, so that tokens of
    fragments and invalidates need no special case.
    """
    stream, *stages = command["pipeline"]
    given: Mapping[str, Any] = stream[CHANGE_STREAM]
    images = {name for name, none in _IMAGES.items() if given.get(name, none) != none}
    options = {name: value for name, value in given.items() if name not in {*STARTS, *images}}
    options["startAtOperationTime"] = _start(after)
    pipeline = [
        {CHANGE_STREAM: options},
        *_front_of_events_alone(stages, images),
        {"$project": {"_id": 1}},
    ]
    return database, {**command, "pipeline": pipeline, "cursor": {"batchSize": 0}}


def _start(after: bytes) -> Any:
    key = token_data(after)
    time = cluster_time_of(key)
    # An invalidate closes every cursor that reads it again; no other event has its time.
    return next_tick(time) if ResumeToken.decode(key.decode("ascii")).from_invalidate else time


def _front_of_events_alone(
    stages: Sequence[Mapping[str, Any]], images: set[str]
) -> list[Mapping[str, Any]]:
    front: list[Mapping[str, Any]] = []
    for stage in stages:
        if stage_name(stage) != "$match" or not _of_event_alone(stage["$match"], images):
            break
        front.append(stage)
    return front


def _of_event_alone(match: Any, images: set[str]) -> bool:
    """Return whether a ``$match`` gives the same result for an event with and without images.

    Return False for unknown conditions: expressions may use random numbers or the time of day.
    """
    if not isinstance(match, Mapping):
        return False
    return all(_is_of_event_alone(name, match[name], images) for name in match)


def _is_of_event_alone(name: str, condition: Any, images: set[str]) -> bool:
    if name in _LOGICAL:
        parts = condition if isinstance(condition, list) else [None]
        return all(_of_event_alone(part, images) for part in parts)
    if name.startswith("$"):
        return name == "$comment"
    return name.partition(".")[0] not in images and _of_value_alone(condition)


def _of_value_alone(condition: Any) -> bool:
    if not isinstance(condition, Mapping):
        return True
    operators = [name for name in condition if name.startswith("$")]
    if not operators:
        return True  # equality with a document
    return all(
        _of_value_alone(condition[name]) if name == "$not" else name in _OF_A_VALUE
        for name in condition
    )
