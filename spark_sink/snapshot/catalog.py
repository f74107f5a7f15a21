"""The collections of a scope, as the servers list them now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bson.binary import Binary
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from spark_sink.options.scope import Scope
from spark_sink.snapshot.plan import SnapshotCollection

SYSTEM_DATABASES = ("admin", "config", "local")
NOT_ALLOWED = 13
"""The code of the error Unauthorized."""


def list_collections(client: MongoClient[Any], scope: Scope) -> Iterator[SnapshotCollection]:
    """Return the collections of a scope, with their shard keys. Raises PyMongoError."""
    if scope.database is None:
        names = client.list_database_names()
        databases = [name for name in names if name not in SYSTEM_DATABASES]
    else:
        databases = [scope.database]
    wanted: dict[str, Any] = {"type": "collection"}
    if scope.collections:
        wanted["name"] = {"$in": list(scope.collections)}
    collections = []
    for database in databases:
        for entry in client[database].list_collections(filter=wanted):
            name = entry["name"]
            if not name.startswith("system.") and scope.accepts(database, name):
                collated = "collation" in entry.get("options", {})
                uuid = _uuid_of(entry)
                collections.append(SnapshotCollection(database, name, uuid, has_collation=collated))
    sharded = _sharded(client, [str(collection) for collection in collections])
    for collection in collections:
        sharding = sharded.get(str(collection), {})
        created = sharding.get("timestamp", collection.created)
        yield replace(collection, key=tuple(sharding.get("key", ())), created=created)


def _sharded(client: MongoClient[Any], names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return what the config server knows of sharded collections, by name."""
    try:
        entries = list(client.config.collections.find({"_id": {"$in": [*names]}}))
    except OperationFailure as error:
        if error.code != NOT_ALLOWED:  # without the privilege, keys are `_id` alone
            raise
        return {}
    return {str(entry["_id"]): entry for entry in entries}


def current_name(client: MongoClient[Any], collection: SnapshotCollection) -> str | None:
    """Return the current name of a collection; None if it was dropped. Raises PyMongoError.

    `reshardCollection` and `movePrimary` replace a collection by a copy with another UUID, without
    events of its documents. So without a collection of the UUID, one of the name is taken.
    """
    wanted: dict[str, Any] = {"name": collection.name}
    if collection.uuid:
        uuid = Binary(bytes.fromhex(collection.uuid), 4)
        wanted = {"$or": [wanted, {"info.uuid": uuid}], "type": "collection"}
    entries = list(client[collection.database].list_collections(filter=wanted))
    own = [entry for entry in entries if _uuid_of(entry) == collection.uuid]
    return str((own or entries)[0]["name"]) if entries else None


def _uuid_of(listed: Mapping[str, Any]) -> str:
    """Return the UUID of a collection, as listCollections shows it, in hexadecimal digits."""
    return bytes(listed.get("info", {}).get("uuid", b"")).hex()
