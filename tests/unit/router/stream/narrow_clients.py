"""Clients of collections and databases on a scripted cluster."""

import asyncio
from typing import Any

from bson import Timestamp

from router.cursors.cursor import MergedCursor
from router.cursors.registry import CursorRegistry
from router.request.stream_request import StreamRequest, parse_request
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, is_tenant

FROM_100 = {"startAtOperationTime": Timestamp(100, 1)}


def watch(
    collection: str | int, *stages: dict[str, Any], database: str = "db", **fields: Any
) -> StreamRequest:
    """Return a request for a collection, from second 100 unless the options say otherwise."""
    options = fields.pop("options", FROM_100)
    pipeline = [{"$changeStream": options}, *stages]
    command = {"aggregate": collection, "pipeline": pipeline, "cursor": {}, **fields}
    return parse_request(database, command)


def belongs(namespace: str, event: dict[str, Any]) -> bool:
    """Return whether a server shows an event to a cursor on a namespace."""
    database, _, collection = namespace.partition(".")
    if database == "admin":
        return bool(event["operationType"] != "invalidate")
    if database != event["ns"]["db"]:
        return False
    if collection == "$cmd.aggregate":
        return event["operationType"] != "invalidate" or "coll" not in event["ns"]
    return bool(collection == event["ns"].get("coll"))


def with_namespaces(cluster: ScriptedCluster) -> ScriptedCluster:
    """Return the cluster, whose shards then know namespaces and filters."""
    for shard in cluster.shards.values():
        shard.belongs = belongs
        shard.matches = is_tenant
    return cluster


def write(
    cluster: ScriptedCluster, second: int, collection: str, database: str = "db", **more: Any
) -> None:
    """Write one event; then all members advance past it."""
    namespace = {"db": database, "coll": collection}
    document = {"_id": second, **more}
    shard = cluster.shards[f"s{second % 3}"]
    shard.insert(Timestamp(second, 1), second % 100, ns=namespace, fullDocument=document)
    cluster.noop(second + 1)


async def opened(registry: CursorRegistry, *names: str, **fields: Any) -> list[MergedCursor]:
    """Open a stream of each of these collections."""
    return [(await registry.open(watch(name, **fields), OWNER))[0] for name in names]


def explained_by(registry: CursorRegistry, request: StreamRequest) -> dict[str, Any]:
    """Return which stream would serve a request now, as explain shows it."""
    return registry.streams.policy.explain(request, asyncio.get_running_loop().time())


def namespaces(registry: CursorRegistry) -> list[str]:
    """Return the namespaces of the open streams."""
    return [each["namespace"] for each in registry.describe_streams()]
