"""findAndModify: one document, on the shard that its query fixes."""

from embedded.mongos.key_change import find_one, move_document, new_owner
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
    """Change one document and return it as it was or is.

    Raises:
        CommandError: 61 ShardKeyNotFound when the query does not fix the shard key; the shard's.
    """
    placement = await request.placement_for_write(request.namespace)
    options = {name: request.command[name] for name in _OPTIONS if name in request.command}
    query, collection = request.field("query", dict, {}), placement.sharded
    async with request.hold(request.namespace):
        member = placement.primary
        if collection is not None:
            member = request.catalog.shard(target_of_find_and_modify(collection, query))
            update = options.get("update")
            if update is not None and may_change_key(collection, update):
                found = await find_one(request, [member], query, options.get("sort"))
                if found is not None:
                    change = Update(update, query, options.get("arrayFilters", ()))
                    after = change.apply(found[1], request.now()).document
                    if new_owner(request, collection, found, after) is not None:
                        await move_document(request, collection, found, after)
                        shown = after if options.get("new") else found[1]
                        return {
                            "lastErrorObject": {"n": 1, "updatedExisting": True},
                            "value": project(shown, options.get("fields", {})),
                        }
        command = {"findAndModify": request.collection, **options}
        if request.retryable:
            command["stmtId"] = request.command.get("stmtId", 0)
        return await request.send(member, command, write=True)
