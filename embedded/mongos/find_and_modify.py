"""findAndModify: change one document, on the shard that the query determines."""

from embedded.mongos.request import Request
from embedded.mongos.targeting import target_of_one
from embedded.storage.bson_values import Document

_OPTIONS = ("query", "sort", "remove", "update", "new", "fields", "upsert")


async def find_and_modify(request: Request) -> Document:
    """Change one document; return it as before or, with ``new``, as after.

    Raises:
        CommandError: 61 ShardKeyNotFound if the query does not determine the shard key; the shard's
            error.
    """
    command = {name: request.command[name] for name in _OPTIONS if name in request.command}
    if request.retryable:
        command["stmtId"] = request.command.get("stmtId", 0)
    async with request.placement_for_write() as placement:
        member = placement.primary
        if placement.sharded is not None:
            query = request.field("query", dict, {})
            member = request.catalog.shard(target_of_one(placement.sharded, query, "findAndModify"))
        inner = {"findAndModify": request.collection, **command}
        return await request.send(member, inner, write=True)
