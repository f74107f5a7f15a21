"""Reading the workload's streams to their end, from one shard, a mongos or a router."""

from dataclasses import dataclass, field
from typing import Any

from bson import Timestamp
from pymongo.errors import OperationFailure

from tests.conformance.streams import time_of
from tests.harness.clusters import Client
from tests.recordings.workload import STREAMS


@dataclass
class Drained:
    """The events of one stream on one server, and how it ended."""

    events: list[dict[str, Any]] = field(default_factory=list)
    error: tuple[int, str] | None = None
    invalidated: bool = False
    closed: bool = False


def drain(client: Client, name: str, start: Timestamp, end: Timestamp) -> Drained:
    """Read a stream of STREAMS from one server, as the recorder did, until it passes ``end``."""
    database, target, options, stages = STREAMS[name]
    stage = {"$changeStream": {**options, "startAtOperationTime": start}}
    return drain_command(
        client, database, {"aggregate": target, "pipeline": [stage, *stages], "cursor": {}}, end
    )


def drain_command(
    client: Client, database: str, command: dict[str, Any], end: Timestamp
) -> Drained:
    result = Drained()
    target = command["aggregate"]
    collection = target if isinstance(target, str) else "$cmd.aggregate"
    try:
        reply = client[database].command(command)
        while True:
            cursor = reply["cursor"]
            result.events += cursor.get("firstBatch", cursor.get("nextBatch"))
            result.invalidated = bool(cursor.get("invalidated"))
            result.closed = cursor["id"] == 0
            if result.closed or time_of(cursor["postBatchResumeToken"]) > end:
                return result
            reply = client[database].command(
                {"getMore": cursor["id"], "collection": collection, "maxTimeMS": 200}
            )
    except OperationFailure as error:
        details = error.details or {}
        result.error = (details["code"], details["errmsg"])
        return result
