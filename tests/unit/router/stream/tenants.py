"""Requests and events of tenants, of which each has a filter of its own."""

from typing import Any

from bson.timestamp import Timestamp

from router.cursors.cursor import MergedCursor
from router.cursors.registry import CursorRegistry
from router.request.stream_request import StreamRequest, parse_request
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster


def tenant(number: int, start: dict[str, Any] | None = None, **fields: Any) -> StreamRequest:
    """Return a request for the events of one tenant, from second 100 unless a start is given."""
    return matching({"fullDocument.tenant": number}, start, **fields)


def matching(
    match: dict[str, Any], start: dict[str, Any] | None = None, **fields: Any
) -> StreamRequest:
    """Return a request with a ``$match``, from second 100 unless a start is given."""
    options = {"startAtOperationTime": Timestamp(100, 1)} if start is None else start
    pipeline = [{"$changeStream": options}, {"$match": match}]
    command = {"aggregate": 1, "pipeline": pipeline, "cursor": {}}
    return parse_request("db", {**command, **fields})


def write(cluster: ScriptedCluster, second: int, of: int, size: int = 0) -> None:
    """Write one tenant's event; then all members advance past it."""
    contents = {"_id": second, "tenant": of, "filler": "x" * size}
    cluster.shards[f"s{second % 3}"].insert(second, second, fullDocument=contents)
    cluster.noop(second + 1)


async def opened(registry: CursorRegistry, *tenants: int, **fields: Any) -> list[MergedCursor]:
    return [(await registry.open(tenant(each, **fields), OWNER))[0] for each in tenants]
