"""The shards that a statement is sent to, by the rules of a 6.0 mongos.

Source: docs/protocol.md#sharded-cluster.
"""

from collections.abc import Mapping
from typing import Any

from bson import json_util

from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.key_ranges import exact_key, key_ranges
from embedded.mongos.shard_key import SHARD_KEY_NOT_FOUND
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError

Update = Mapping[str, Any] | list[Any]


def targets_of_filter(collection: ShardedCollection, filter_: Mapping[str, Any]) -> set[str]:
    """Return the shards that may hold matching documents; never empty."""
    owners = collection.chunks.owners(key_ranges(collection.key, filter_))
    return owners or {collection.chunks.chunk_of(collection.key.lowest).shard}


def targets_of_update(collection: ShardedCollection, statement: Mapping[str, Any]) -> set[str]:
    """Return the shards of one update statement ``{q, u, multi, upsert}``.

    Raises:
        CommandError: 61 ShardKeyNotFound for an upsert without the full shard key; 72
            InvalidOptions for an update of one document that may be on several shards.
    """
    query, update = statement["q"], statement["u"]
    key = exact_key(collection.key, query)
    if key is not None:
        return {collection.chunks.chunk_of(key).shard}
    if statement.get("upsert"):
        raise CommandError(
            SHARD_KEY_NOT_FOUND, "Failed to target upsert by query :: could not extract exact "
            "shard key", code_name="ShardKeyNotFound",
        )  # fmt: skip
    found = targets_of_filter(collection, query)
    if len(found) > 1 and not statement.get("multi") and is_replacement(update):
        whole = {**update, **({"_id": query["_id"]} if "_id" in query else {})}
        found = {collection.chunks.owner_of_document(whole)}
    if len(found) > 1 and not statement.get("multi"):
        _check_single(collection, statement, "update", "{multi:false} update")
    return found


def targets_of_delete(collection: ShardedCollection, statement: Mapping[str, Any]) -> set[str]:
    """Return the shards of one delete statement ``{q, limit}``.

    Raises:
        CommandError: 61 for a delete of one document that may be on several shards.
    """
    found = targets_of_filter(collection, statement["q"])
    if len(found) > 1 and statement.get("limit"):
        _check_single(collection, statement, "delete", "single delete")
    return found


def target_of_find_and_modify(collection: ShardedCollection, query: Mapping[str, Any]) -> str:
    """Return the one shard of a findAndModify.

    Raises:
        CommandError: 61 ShardKeyNotFound if the query does not determine the shard key.
    """
    key = exact_key(collection.key, query)
    if key is None:
        raise CommandError(
            SHARD_KEY_NOT_FOUND, "Query for sharded findAndModify must contain the shard key",
            code_name="ShardKeyNotFound",
        )  # fmt: skip
    return collection.chunks.chunk_of(key).shard


def is_replacement(update: Update) -> bool:
    """Return whether ``update`` is a complete new document."""
    return isinstance(update, Mapping) and not any(name.startswith("$") for name in update)


def may_change_key(collection: ShardedCollection, update: Update) -> bool:
    """Return whether an update could change a document's shard key."""
    if isinstance(update, list) or is_replacement(update):
        return True
    touched: set[str] = set()
    for operator, fields in update.items():
        if isinstance(fields, Mapping):
            touched.update(fields)
            if operator == "$rename":
                touched.update(str(target) for target in fields.values())
    return any(
        path == field or path.startswith(f"{field}.") or field.startswith(f"{path}.")
        for path in touched
        for field in collection.key.fields
    )


def key_changed(collection: ShardedCollection, before: Document, after: Document) -> bool:
    """Return whether two versions of a document differ in their shard key."""
    return collection.key.key_fields(before) != collection.key.key_fields(after)


def _check_single(
    collection: ShardedCollection, statement: Mapping[str, Any], verb: str, what: str
) -> None:
    """Refuse a single-document statement on several shards, unless it matches ``_id`` exactly.

    An exact match on ``_id`` may be sent to all shards, because at most one has the document.
    """
    id_ = statement["q"].get("_id")
    if id_ is not None and not (isinstance(id_, Mapping) and next(iter(id_), "").startswith("$")):
        return
    pattern = json_util.dumps(dict(collection.key.pattern))
    raise CommandError(
        72 if verb == "update" else SHARD_KEY_NOT_FOUND,
        f"A {what} on a sharded collection must contain an exact match on _id (and have the "
        f"collection default collation) or contain the shard key (and have the simple collation), "
        f"or must target a single shard (and have the simple collation). "
        f"{verb.capitalize()} request: {json_util.dumps(statement)}, shard key pattern: {pattern}",
        code_name="InvalidOptions" if verb == "update" else "ShardKeyNotFound",
    )
