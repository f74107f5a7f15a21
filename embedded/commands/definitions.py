"""create, drop, dropDatabase, renameCollection, collMod: what there is, and under which name.

Source: docs/protocol.md, section 5 (the events that these commands make).
"""

from typing import Any

from bson.binary import Binary

from embedded.commands.request import Request, command
from embedded.errors import bad_value, namespace_exists, namespace_not_found
from embedded.storage.bson_values import Document
from embedded.storage.collection import Collection
from shard_client.errors import CommandError

_OPTIONS = (
    "capped", "size", "max", "validator", "validationLevel", "validationAction", "collation",
    "changeStreamPreAndPostImages", "timeseries", "clusteredIndex", "expireAfterSeconds",
    "storageEngine", "indexOptionDefaults", "encryptedFields",
)  # fmt: skip
_MODIFIABLE = (
    "validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages",
    "expireAfterSeconds", "cappedSize", "cappedMax",
)  # fmt: skip


@command("create", in_transactions=True)
async def create(request: Request) -> Document:
    """Create a collection or a view. In-process clients may give its ``uuid``."""
    mongod, given = request.mongod, request.command
    if "viewOn" in given:
        _create_view(request)
        return {}
    options = {name: given[name] for name in _OPTIONS if given.get(name)}
    existing = mongod.catalog.get(request.ns)
    if existing is not None and existing.options == options:
        return {}
    if existing is not None or mongod.catalog.view(request.ns) is not None:
        raise namespace_exists(request.ns)
    uuid: Binary | None = given.get("uuid") if request.client.in_process else None
    mongod.create_collection(
        request.database,
        request.target,
        options,
        uuid=uuid,
        from_migrate=request.client.from_migrate,
    )
    return {}


def _create_view(request: Request) -> None:
    mongod, ns = request.mongod, request.ns
    if mongod.catalog.get(ns) is not None or mongod.catalog.view(ns) is not None:
        raise namespace_exists(ns)
    view: Document = {
        "_id": ns,
        "viewOn": request.field("viewOn", str, None),
        "pipeline": request.field("pipeline", list, []),
    }
    collection = mongod.catalog.get(f"{request.database}.system.views")
    if collection is None:
        collection = mongod.create_collection(request.database, "system.views")
    request.unit.insert(collection, view, 0)
    mongod.catalog.views[ns] = view


@command("drop")
async def drop(request: Request) -> Document:
    """Drop a collection or a view."""
    mongod, ns = request.mongod, request.ns
    collection = mongod.catalog.get(ns)
    if collection is not None:
        count = len(collection.indexes)
        mongod.drop_collection(collection, from_migrate=request.client.from_migrate)
        return {"nIndexesWas": count, "ns": ns}
    view = mongod.catalog.views.pop(ns, None)
    if view is not None:
        views = mongod.catalog.require(f"{request.database}.system.views")
        request.unit.delete(views, view, 0)
        return {"ns": ns}
    if mongod.token_version == 1:
        raise namespace_not_found()
    return {}


@command("dropDatabase")
async def drop_database(request: Request) -> Document:
    """Drop a database with all its collections."""
    mongod, database = request.mongod, request.database
    if database in ("admin", "config", "local") and not request.client.in_process:
        raise CommandError(
            20, f"Dropping the '{database}' database is prohibited.", code_name="IllegalOperation"
        )
    collections = mongod.catalog.collections(database)
    if not collections:
        return {}
    for collection in collections:
        mongod.drop_collection(collection, from_migrate=request.client.from_migrate)
    for ns in [ns for ns in mongod.catalog.views if ns.startswith(f"{database}.")]:
        del mongod.catalog.views[ns]
    mongod.journal.log_command(
        database, {"dropDatabase": 1}, from_migrate=request.client.from_migrate
    )
    return {"dropped": database}


@command("renameCollection")
async def rename_collection(request: Request) -> Document:
    """Give a collection another name, which also may be in another database."""
    mongod = request.mongod
    source, target = request.command["renameCollection"], request.field("to", str, "")
    database, _, name = target.partition(".")
    if not isinstance(source, str) or not name:
        raise CommandError(73, f"Invalid target namespace: {target}", code_name="InvalidNamespace")
    collection = mongod.catalog.get(source)
    if collection is None:
        raise namespace_not_found(f"Source collection {source} does not exist")
    if source == target:
        raise CommandError(20, "Can't rename a collection to itself", code_name="IllegalOperation")
    o: Document = {"renameCollection": source, "to": target, "stayTemp": False}
    occupied = mongod.catalog.get(target)
    if occupied is not None:
        if not request.command.get("dropTarget"):
            raise CommandError(48, "target namespace exists", code_name="NamespaceExists")
        o["dropTarget"] = occupied.uuid
        mongod.catalog.drop(occupied)
    mongod.journal.log_command(
        source.partition(".")[0],
        o,
        uuid=collection.uuid,
        o2={"numRecords": len(occupied)} if occupied is not None else None,
        from_migrate=request.client.from_migrate,
    )
    mongod.catalog.rename(collection, database, name)
    return {}


@command("collMod")
async def modify(request: Request) -> Document:
    """Change a collection's options."""
    mongod, given = request.mongod, request.command
    collection = mongod.catalog.get(request.ns)
    if collection is None:
        return _modify_view(request)
    changes = {name: given[name] for name in _MODIFIABLE if name in given}
    if "index" in given:
        changes["index"] = request.field("index", dict, {})
        _modify_index(collection, changes["index"])
    before = {"uuid": collection.uuid, **collection.options}
    for name, value in changes.items():
        if name == "index":
            continue
        if value in ({}, None, "off"):
            collection.options.pop(name, None)
        else:
            collection.options[name] = value
    mongod.journal.log_command(
        request.database,
        {"collMod": collection.name, **changes},
        uuid=collection.uuid,
        o2={"collectionOptions_old": before},
        from_migrate=request.client.from_migrate,
    )
    return {}


def _modify_index(collection: Collection, change: Document) -> None:
    for specification in collection.indexes.values():
        if specification["name"] == change.get("name") or specification["key"] == change.get(
            "keyPattern"
        ):
            for option in ("hidden", "expireAfterSeconds"):
                if option in change:
                    specification[option] = change[option]
            return
    raise CommandError(27, "cannot find index for collMod", code_name="IndexNotFound")


def _modify_view(request: Request) -> Document:
    view = request.mongod.catalog.view(request.ns)
    if view is None:
        raise namespace_not_found("ns does not exist")
    if "viewOn" not in request.command:
        raise bad_value("Must specify both 'viewOn' and 'pipeline' when modifying a view")
    changed: dict[str, Any] = {
        "_id": request.ns,
        "viewOn": request.command["viewOn"],
        "pipeline": request.command.get("pipeline", []),
    }
    views = request.mongod.catalog.require(f"{request.database}.system.views")
    request.unit.update(views, view, changed, changed, 0)
    request.mongod.catalog.views[request.ns] = changed
    return {}
