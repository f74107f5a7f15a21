"""Reads of views, run as pipelines over their source collections."""

from collections.abc import Mapping
from typing import Any

from embedded.mongos import reads
from embedded.mongos.aggregations import run
from embedded.mongos.request import Request
from embedded.storage.bson_values import Document


async def find(request: Request) -> Document:
    """Return a cursor over the matching documents of a collection or view."""
    if not _is_view(request):
        return await reads.find(request)
    command = request.command
    pipeline: list[Mapping[str, Any]] = [{"$match": command.get("filter", {})}]
    if command.get("sort"):
        pipeline.append({"$sort": command["sort"]})
    if command.get("skip"):
        pipeline.append({"$skip": int(command["skip"])})
    if command.get("limit"):
        pipeline.append({"$limit": abs(int(command["limit"]))})
    if command.get("projection"):
        pipeline.append({"$project": command["projection"]})
    documents = await run(request, request.namespace, pipeline)
    return reads.open_cursor(request, request.namespace, documents, command.get("batchSize"))


async def count(request: Request) -> Document:
    """Return the number of matching documents of a collection or view."""
    if not _is_view(request):
        return await reads.count(request)
    pipeline = [{"$match": request.command.get("query") or {}}]
    return {"n": len(await run(request, request.namespace, pipeline))}


async def distinct(request: Request) -> Document:
    """Return the distinct values of a field of a collection or view."""
    if not _is_view(request):
        return await reads.distinct(request)
    path = request.field("key", str)
    pipeline = [
        {"$match": request.command.get("query") or {}},
        {"$group": {"_id": f"${path}"}},
    ]
    documents = await run(request, request.namespace, pipeline)
    return {"values": [document["_id"] for document in documents]}


def _is_view(request: Request) -> bool:
    placement = request.placement(request.namespace)
    return (
        placement is not None
        and placement.primary.mongod.catalog.view(request.namespace) is not None
    )
