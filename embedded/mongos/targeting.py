"""The shards that a statement is sent to.

The target is known from equality with the shard key, or with its leading fields; everything else
goes to all shards of the collection. Source: docs/protocol.md#sharded-cluster.
"""

from collections.abc import Mapping
from typing import Any

from bson import Regex

from embedded.errors import CommandError
from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.shard_key import SHARD_KEY_NOT_FOUND, KeyValues, ShardKey
from embedded.storage.bson_values import MISSING
from embedded.storage.queries import is_operators


def leading_values(key: ShardKey, filter_: Mapping[str, Any]) -> KeyValues:
    """Return the values of the leading key fields that ``filter_`` determines by equality."""
    values = []
    for field in key.fields:
        value = filter_.get(field, MISSING)
        if is_operators(value):
            value = value.get("$eq", MISSING)
        if value is MISSING or isinstance(value, list | Regex):
            break
        values.append(value)
    return tuple(values)


def targets_of_filter(collection: ShardedCollection, filter_: Mapping[str, Any]) -> set[str]:
    """Return the shards that may hold matching documents; never empty."""
    return collection.chunks.owners(leading_values(collection.key, filter_))


def targets_of_update(collection: ShardedCollection, statement: Mapping[str, Any]) -> set[str]:
    """Return the shards of one update statement ``{q, u, multi, upsert}``.

    Raises:
        CommandError: 61 ShardKeyNotFound for an upsert without the full shard key; 72
            InvalidOptions for an update of one document that may be on several shards.
    """
    query, update = statement["q"], statement["u"]
    if statement.get("upsert"):
        key = leading_values(collection.key, query)
        if len(key) < len(collection.key.fields):
            raise CommandError(
                SHARD_KEY_NOT_FOUND, "Query for sharded upsert must contain the shard key",
                code_name="ShardKeyNotFound",
            )  # fmt: skip
        return collection.chunks.owners(key)
    targets = targets_of_filter(collection, query)
    if len(targets) > 1 and not statement.get("multi"):
        if isinstance(update, Mapping) and not is_operators(update):
            return {collection.chunks.owner_of_document({**query, **update})}
        _check_single(query, 72, "A {multi:false} update")
    return targets


def targets_of_delete(collection: ShardedCollection, statement: Mapping[str, Any]) -> set[str]:
    """Return the shards of one delete statement ``{q, limit}``.

    Raises:
        CommandError: 61 for a delete of one document that may be on several shards.
    """
    targets = targets_of_filter(collection, statement["q"])
    if len(targets) > 1 and statement.get("limit"):
        _check_single(statement["q"], SHARD_KEY_NOT_FOUND, "A single delete")
    return targets


def _check_single(query: Mapping[str, Any], code: int, what: str) -> None:
    """Refuse a single-document statement on several shards, unless it matches ``_id`` exactly.

    An exact match on ``_id`` may be sent to all shards, because at most one has the document.
    """
    if query.get("_id") is None or is_operators(query["_id"]):
        raise CommandError(
            code,
            f"{what} on a sharded collection must contain an exact match on _id or the shard key, "
            "or must target a single shard",
            code_name="InvalidOptions" if code == 72 else "ShardKeyNotFound",
        )
