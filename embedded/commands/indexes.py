"""createIndexes, dropIndexes, listIndexes; listCollections and listDatabases.

Source: docs/protocol.md#events (the events that these commands cause).
"""

from embedded.commands.reads import reply_with
from embedded.commands.request import Request, command
from embedded.commands.write_statements import writable_collection
from embedded.cursors import FIRST_BATCH
from embedded.errors import CommandError, ErrorCode, bad_value, namespace_not_found, not_implemented
from embedded.storage.bson_values import Document
from embedded.storage.catalog import VIEWS
from embedded.storage.collection import Collection
from embedded.storage.queries import Matcher


@command("createIndexes", in_transactions=True)
async def create_indexes(request: Request) -> Document:
    """Create indexes, which have no effect but their events."""
    wanted = [_specification(index) for index in request.field("indexes", list, [])]
    if not wanted:
        raise bad_value("Must specify at least one index to create")
    was_missing = request.collection is None
    collection = writable_collection(request)
    before = len(collection.indexes)
    new = [specification for specification in wanted if not _is_there(collection, specification)]
    was_empty = len(collection) == 0
    for specification in new:
        collection.indexes[specification["name"]] = specification
    _log_created(request, collection, new, was_empty=was_empty)
    reply: Document = {
        "numIndexesBefore": before,
        "numIndexesAfter": len(collection.indexes),
        "createdCollectionAutomatically": was_missing,
    }
    if not new:
        return reply | {"note": "all indexes already exist"}
    return reply | {"commitQuorum": "votingMembers"}


def _specification(given: Document) -> Document:
    key = given.get("key")
    if not isinstance(key, dict) or not key:
        raise CommandError(
            67, "Index keys must be a non-empty document", code_name="CannotCreateIndex"
        )
    if given.get("unique"):
        raise not_implemented("unique indexes are not implemented")
    name = given.get("name") or "_".join(f"{field}_{way}" for field, way in key.items())
    rest = {n: v for n, v in given.items() if n not in ("v", "key", "name", "ns")}
    return {"v": 2, "key": key, "name": name, **rest}


def _is_there(collection: Collection, wanted: Document) -> bool:
    present = collection.indexes.get(wanted["name"])
    if present is not None and present["key"] != wanted["key"]:
        raise CommandError(
            86,
            "An existing index has the same name as the requested index.",
            code_name="IndexKeySpecsConflict",
        )
    return present is not None


def _log_created(
    request: Request, collection: Collection, new: list[Document], *, was_empty: bool
) -> None:
    journal, migrating = request.mongod.journal, request.client.from_migrate
    if was_empty:
        for specification in new:
            journal.log_command(
                request.database,
                {"createIndexes": collection.name, **specification},
                uuid=collection.uuid,
                from_migrate=migrating,
            )
    elif new:
        journal.log_command(
            request.database,
            {
                "commitIndexBuild": collection.name,
                "indexBuildUUID": request.mongod.new_uuid(),
                "indexes": new,
            },
            uuid=collection.uuid,
            from_migrate=migrating,
        )


@command("dropIndexes", "deleteIndexes")
async def drop_indexes(request: Request) -> Document:
    """Drop one index, several, or all except ``_id_``."""
    collection = request.mongod.catalog.get(request.ns)
    if collection is None:
        raise namespace_not_found(f"ns not found {request.ns}")
    count = len(collection.indexes)
    for name in _names(collection, request.command.get("index")):
        if name == "_id_":
            raise CommandError(ErrorCode.InvalidOptions, "cannot drop _id index")
        specification = collection.indexes.pop(name)
        request.mongod.journal.log_command(
            request.database,
            {"dropIndexes": collection.name, "index": name},
            uuid=collection.uuid,
            o2=specification,
            from_migrate=request.client.from_migrate,
        )
    return {"nIndexesWas": count}


def _names(collection: Collection, wanted: object) -> list[str]:
    if wanted == "*":
        return [name for name in collection.indexes if name != "_id_"]
    if isinstance(wanted, list):
        return [name for index in wanted for name in _names(collection, index)]
    for name, specification in collection.indexes.items():
        if name == wanted or specification["key"] == wanted:
            return [name]
    raise CommandError(27, f"index not found with name [{wanted}]", code_name="IndexNotFound")


async def _listing(request: Request, ns: str, documents: list[Document]) -> Document:
    size = (request.command.get("cursor") or {}).get("batchSize", FIRST_BATCH)
    return await reply_with(request, ns, documents, size)


@command("listIndexes")
async def list_indexes(request: Request) -> Document:
    """List a collection's indexes."""
    collection = request.mongod.catalog.get(request.ns)
    if collection is None:
        raise namespace_not_found(f"ns does not exist: {request.ns}")
    return await _listing(request, request.ns, list(collection.indexes.values()))


@command("listCollections")
async def list_collections(request: Request) -> Document:
    """List a database's collections and views."""
    catalog, database = request.mongod.catalog, request.database
    listed = [collection.info() for collection in catalog.collections(database)]
    views = catalog.get(f"{database}.{VIEWS}")
    for view in views.documents() if views is not None else ():
        name, options = view["_id"].partition(".")[2], {**view}
        del options["_id"]
        info = {"readOnly": True}
        listed.append({"name": name, "type": "view", "options": options, "info": info})
    matcher = Matcher(request.field("filter", dict, {}))
    listed = [info for info in listed if matcher(info)]
    if request.command.get("nameOnly"):
        listed = [{"name": info["name"], "type": info["type"]} for info in listed]
    return await _listing(request, f"{database}.$cmd.listCollections", listed)
