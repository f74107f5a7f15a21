"""Data definition commands: create, drop, dropDatabase, renameCollection, collMod.

Source: docs/protocol.md#events (the events that these commands cause).
"""

from bson.binary import Binary

from embedded.commands.request import Request, command
from embedded.errors import (
    CommandError,
    ErrorCode,
    namespace_exists,
    namespace_not_found,
    not_implemented,
)
from embedded.storage.bson_values import Document
from embedded.storage.catalog import VIEWS
from embedded.storage.collection import Collection
from embedded.write_unit import Operation

_OPTIONS = (
    "capped", "size", "max", "validator", "validationLevel", "validationAction", "collation",
    "changeStreamPreAndPostImages",
)  # fmt: skip
_MODIFIABLE = (
    "validator", "validationLevel", "validationAction", "changeStreamPreAndPostImages",
    "expireAfterSeconds",
)  # fmt: skip
_VALIDATION = frozenset({"validator", "validationLevel", "validationAction"})


@command("create", in_transactions=True)
async def create(request: Request) -> Document:
    """Create a collection or a view. In-process clients may set its ``uuid``."""
    mongod, given = request.mongod, request.command
    if "viewOn" in given:
        return _create_view(request)
    options = {name: given[name] for name in _OPTIONS if given.get(name)}
    for name in ("timeseries", "clusteredIndex"):
        if name in given:
            raise not_implemented(f"{name} is not implemented")
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


def _create_view(request: Request) -> Document:
    catalog, ns = request.mongod.catalog, request.ns
    if catalog.get(ns) is not None or catalog.view(ns) is not None:
        raise namespace_exists(ns)
    pipeline = request.field("pipeline", list, [])
    view = {"_id": ns, "viewOn": request.field("viewOn", str, None), "pipeline": pipeline}
    stored = catalog.get(f"{request.database}.{VIEWS}")
    if stored is None:
        stored = request.mongod.create_collection(request.database, VIEWS)
    request.unit.write(Operation(stored, None, view))
    return {}


@command("drop")
async def drop(request: Request) -> Document:
    """Drop a collection or a view."""
    mongod, ns = request.mongod, request.ns
    collection = mongod.catalog.get(ns)
    if collection is not None:
        count = len(collection.indexes)
        mongod.drop_collection(collection, from_migrate=request.client.from_migrate)
        return {"nIndexesWas": count, "ns": ns}
    view, stored = mongod.catalog.view(ns), mongod.catalog.get(f"{request.database}.{VIEWS}")
    if view is not None and stored is not None:
        request.unit.write(Operation(stored, view, None))
        return {"ns": ns}
    if mongod.server_version.drops_what_is_missing:
        return {}
    raise namespace_not_found()


@command("dropDatabase")
async def drop_database(request: Request) -> Document:
    """Drop a database with all its collections."""
    mongod, database = request.mongod, request.database
    if database in ("admin", "config", "local") and not request.client.in_process:
        raise CommandError(
            ErrorCode.IllegalOperation, f"Dropping the '{database}' database is prohibited."
        )
    collections = mongod.catalog.collections(database)
    if not collections:
        return {}
    for collection in collections:
        mongod.drop_collection(collection, from_migrate=request.client.from_migrate)
    mongod.journal.log_command(
        database, {"dropDatabase": 1}, from_migrate=request.client.from_migrate
    )
    return {"dropped": database}


@command("renameCollection")
async def rename_collection(request: Request) -> Document:
    """Rename a collection, also into another database."""
    mongod = request.mongod
    source, target = request.command["renameCollection"], request.field("to", str, "")
    database, _, name = target.partition(".")
    if not isinstance(source, str) or not name:
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid target namespace: {target}")
    collection = mongod.catalog.get(source)
    if collection is None:
        raise namespace_not_found(f"Source collection {source} does not exist")
    if source == target:
        raise CommandError(ErrorCode.IllegalOperation, "Can't rename a collection to itself")
    o: Document = {"renameCollection": source, "to": target, "stayTemp": False}
    occupied = mongod.catalog.get(target)
    if occupied is not None:
        if not request.command.get("dropTarget"):
            raise CommandError(ErrorCode.NamespaceExists, "target namespace exists")
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
        raise namespace_not_found("ns does not exist")
    changes = {name: given[name] for name in _MODIFIABLE if name in given}
    before = {"collectionOptions_old": {"uuid": collection.uuid, **collection.options}}
    if "index" in given:
        raise not_implemented("collMod of an index is not implemented")
    _modify_options(collection, changes)
    mongod.journal.log_command(
        request.database,
        {"collMod": collection.name, **changes},
        uuid=collection.uuid,
        o2=before,
        from_migrate=request.client.from_migrate,
    )
    return {}


def _modify_options(collection: Collection, changes: Document) -> None:
    options = collection.options
    for name, value in changes.items():
        if value in ({}, None) or (name, value) == ("expireAfterSeconds", "off"):
            options.pop(name, None)
        else:
            options[name] = value
    if _VALIDATION & changes.keys() and "validator" in options:
        # With a validator, collMod also sets the defaults of its level and its action.
        options.setdefault("validationLevel", "strict")
        options.setdefault("validationAction", "error")
