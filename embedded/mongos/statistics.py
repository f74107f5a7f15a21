"""Sizes of databases and collections, and query plans."""

from typing import Any

from embedded.mongos.ddl import as_sent, holding
from embedded.mongos.members import replies_of
from embedded.mongos.reads import members_for
from embedded.mongos.request import Request
from embedded.storage.bson_values import Document

_SUMMED = (
    "collections", "views", "objects", "count", "size", "dataSize", "storageSize", "indexes",
    "indexSize", "totalIndexSize", "totalSize",
)  # fmt: skip


async def database_stats(request: Request) -> Document:
    """Return the sums of the shards' dbStats."""
    command = as_sent(request)
    replies = replies_of(await request.send_all(dict.fromkeys(request.catalog.shards, command)))
    return {
        "raw": {member.host: reply for member, reply in replies.items()},
        "db": request.database,
        **_sums(list(replies.values())),
    }


async def collection_stats(request: Request) -> Document:
    """Return the sums of the shards' collStats for a collection."""
    members = holding(request, request.namespace)
    replies = replies_of(await request.send_all(dict.fromkeys(members, as_sent(request))))
    return {
        "sharded": request.namespace in request.catalog.collections,
        "ns": request.namespace,
        **_sums(list(replies.values())),
        "shards": {member.id: reply for member, reply in replies.items()},
    }


async def explain(request: Request) -> Document:
    """Return the shards that a command would be sent to."""
    inner: Document = request.field("explain", dict)
    name = next(iter(inner), "")
    filter_: Any = inner.get("filter", inner.get("query", {}))
    placement = request.placement(f"{request.database}.{inner.get(name)}")
    members = members_for(request, placement, filter_) if placement else []
    stage = "SINGLE_SHARD" if len(members) == 1 else "SHARD_MERGE"
    shards = [{"shardName": member.id, "connectionString": member.host} for member in members]
    return {
        "queryPlanner": {"mongosPlannerVersion": 1,
                         "winningPlan": {"stage": stage, "shards": shards}},
        "command": inner,
    }  # fmt: skip


def _sums(replies: list[Document]) -> Document:
    return {
        name: sum(reply.get(name, 0) for reply in replies)
        for name in _SUMMED
        if any(isinstance(reply.get(name), int | float) for reply in replies)
    }
