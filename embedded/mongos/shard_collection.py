"""The commands enableSharding and shardCollection."""

from typing import Any

from bson import Binary, Int64

from embedded.errors import CommandError, ErrorCode
from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.chunk_map import Chunk, ChunkMap
from embedded.mongos.request import RoutedRequest
from embedded.mongos.shard_key import ShardKey
from embedded.mongos.shards import Shard
from embedded.storage.bson_values import Document


async def enable_sharding(request: RoutedRequest) -> Document:
    """Create a database, on the shard ``primaryShard`` if the command names one."""
    name, wanted = str(request.command["enableSharding"]), request.command.get("primaryShard")
    primary = request.catalog.shard(wanted) if wanted else None
    await request.catalog.create_database(name, primary)
    return {}


async def shard_collection(request: RoutedRequest) -> Document:
    """Shard a collection, creating it if necessary.

    Raises:
        CommandError: 23 AlreadyInitialized if it is sharded by another key; 72 InvalidOptions if it
            has documents but no index on the key.
    """
    namespace = str(request.command["shardCollection"])
    key = ShardKey(request.command.get("key") or {})
    database, _, name = namespace.partition(".")
    if not name:
        raise CommandError(ErrorCode.InvalidNamespace, f"Invalid namespace: {namespace}")
    async with request.state.locks.exclusive(namespace):
        primary = await request.catalog.create_database(database)
        existing = request.catalog.collections.get(namespace)
        if existing is None:
            existing = await _shard(request, primary, namespace, key)
        elif dict(existing.key.pattern) != dict(key.pattern):
            raise CommandError(
                23, f"sharding already enabled for collection {namespace}",
                code_name="AlreadyInitialized",
            )  # fmt: skip
    return {"collectionsharded": namespace, "collectionUUID": existing.uuid}


async def _shard(
    request: RoutedRequest, primary: Shard, namespace: str, key: ShardKey
) -> ShardedCollection:
    database, _, name = namespace.partition(".")
    unique = bool(request.command.get("unique", False))
    local = primary.mongod.catalog
    if local.get(namespace) is None:
        await primary.execute(database, {"create": name})
    stored = local.require(namespace)
    was_empty = len(stored) == 0
    for document in stored.documents():
        key.of_document(document)
    await _ensure_index(primary, namespace, key, was_empty=was_empty)
    chunks = ChunkMap(key, [Chunk(key.lowest, key.highest, primary.id)])
    collection = ShardedCollection(
        namespace, stored.uuid, chunks, unique, request.catalog.gossip.time
    )
    primary.mongod.set_shard_key(namespace, key.fields)
    await request.catalog.add_collection(collection, primary.mongod.now())
    _log_event(primary, collection, stored.uuid)
    return collection


async def _ensure_index(primary: Shard, namespace: str, key: ShardKey, *, was_empty: bool) -> None:
    database, _, name = namespace.partition(".")
    wanted = list(key.pattern.items())
    indexes = primary.mongod.catalog.require(namespace).indexes.values()
    if any(list(index["key"].items())[: len(wanted)] == wanted for index in indexes):
        return
    if not was_empty:
        raise CommandError(
            ErrorCode.InvalidOptions,
            "Please create an index that starts with the proposed shard key before sharding "
            "the collection. "
        )  # fmt: skip
    index: dict[str, Any] = {
        "key": dict(wanted),
        "name": "_".join(f"{field}_{kind}" for field, kind in wanted),
    }
    await primary.execute(database, {"createIndexes": name, "indexes": [index]})


def _log_event(primary: Shard, collection: ShardedCollection, uuid: Binary) -> None:
    """Append the oplog entry that change streams with expanded events show."""
    primary.adopt_time()
    namespace = collection.namespace
    primary.mongod.append_noop(
        {"msg": {"shardCollection": namespace}},
        ns=namespace,
        uuid=uuid,
        o2={
            "shardCollection": namespace,
            "shardKey": dict(collection.key.pattern),
            "unique": collection.unique,
            "numInitialChunks": Int64(0),
            "presplitHashedZones": False,
        },
    )
    primary.report_time()
