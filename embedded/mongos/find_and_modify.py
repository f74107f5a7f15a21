"""findAndModify: change one document, on the shard that the query determines."""

from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.key_change import (
    find_one,
    move_document,
    new_owner,
    reply_of_repeated_move,
)
from embedded.mongos.members import Member
from embedded.mongos.request import Request
from embedded.mongos.targeting import may_change_key, target_of_find_and_modify
from embedded.storage.bson_values import Document
from embedded.storage.queries import project
from embedded.storage.updates import Update

_OPTIONS = (
    "query", "sort", "remove", "update", "new", "fields", "upsert", "arrayFilters", "hint",
    "collation",
)  # fmt: skip


async def find_and_modify(request: Request) -> Document:
    """Change one document; return it as before or, with ``new``, as after.

    Raises:
        CommandError: 61 ShardKeyNotFound if the query does not determine the shard key; the shard's
            error.
    """
    placement = await request.placement_for_write(request.namespace)
    options = {name: request.command[name] for name in _OPTIONS if name in request.command}
    member, collection = placement.primary, placement.sharded
    async with request.hold(request.namespace):
        if collection is not None:
            query = request.field("query", dict, {})
            member = request.catalog.shard(target_of_find_and_modify(collection, query))
            update = options.get("update")
            if update is not None and may_change_key(collection, update):
                reply = await _moved(request, collection, member, options)
                if reply is not None:
                    return reply
        command = {"findAndModify": request.collection, **options}
        if request.retryable:
            command["stmtId"] = request.command.get("stmtId", 0)
        return await request.send(member, command, write=True)


async def _moved(
    request: Request, collection: ShardedCollection, member: Member, options: Document
) -> Document | None:
    """Apply the change if it moves the document to another shard; otherwise return ``None``."""
    repeated = reply_of_repeated_move(request)
    if repeated is not None:
        return repeated
    query, update = options.get("query", {}), options["update"]
    found = await find_one(request, [member], query, options.get("sort"))
    if found is None:
        return None
    change = Update(update, query, options.get("arrayFilters", ()))
    after = change.apply(found[1], request.now()).document
    if new_owner(request, collection, found, after) is None:
        return None
    shown = after if options.get("new") else found[1]
    reply = {
        "lastErrorObject": {"n": 1, "updatedExisting": True},
        "value": project(shown, options.get("fields", {})),
    }
    await move_document(request, collection, found, after, reply)
    return reply
