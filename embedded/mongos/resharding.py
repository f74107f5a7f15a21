"""Changes of a collection's shard key: refineCollectionShardKey and reshardCollection."""

from typing import Any

from bson import Binary, Int64, MinKey

from embedded.errors import namespace_not_found
from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.chunk_map import Chunk, ChunkMap
from embedded.mongos.members import Member
from embedded.mongos.migration import create_like, insert_documents, note_event
from embedded.mongos.request import Request
from embedded.mongos.shard_key import KeyValues, ShardKey
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError


async def refine_shard_key(request: Request) -> Document:
    """Add fields to a shard key; the chunks stay on their shards.

    From 6.1 on, change streams show it as an event.

    Raises:
        CommandError: 26 if the collection is not sharded; 72 if the new key does not start with the
            current key.
    """
    namespace, key = _arguments(request)
    async with request.state.locks.exclusive(namespace):
        collection = _sharded(request, namespace)
        old = collection.key
        present, wanted = list(old.pattern.items()), list(key.pattern.items())
        if wanted == present:
            return {}
        if wanted[: len(present)] != present:
            raise CommandError(
                72, f"refineCollectionShardKey shard key {dict(wanted)} does not extend the "
                f"current shard key {dict(present)}", code_name="InvalidOptions",
            )  # fmt: skip
        collection.chunks = ChunkMap(key, [_longer(chunk, old, key) for chunk in collection.chunks])
        for holder in request.catalog.holders(collection):
            holder.mongod.set_shard_key(namespace, key.fields)
        await request.catalog.rewrite_collection(collection, collection.uuid)
        if request.state.identity.token_version > 1:
            event = {"shardKey": dict(wanted), "oldShardKey": dict(present)}
            _note(request, collection, "refineCollectionShardKey", event)
    return {}


async def reshard(request: Request) -> Document:
    """Shard a collection by another key, with all data on the database's primary shard.

    Raises:
        CommandError: 26 if the collection is not sharded; 61 if a document has no valid new key.
    """
    namespace, key = _arguments(request)
    database, _, name = namespace.partition(".")
    async with request.state.locks.exclusive(namespace):
        collection = _sharded(request, namespace)
        old, source = collection.key, collection.uuid
        primary = _primary(request, database)
        holders = request.catalog.holders(collection)
        like = holders[0].mongod.catalog.require(namespace)
        documents = [
            document
            for holder in holders
            for document in holder.mongod.catalog.require(namespace).documents()
        ]
        for document in documents:
            key.of_document(document)
        uuid: Binary = request.catalog.config.mongod.new_uuid()
        event: dict[str, Any] = {
            "reshardUUID": uuid,
            "shardKey": dict(key.pattern),
            "oldShardKey": dict(old.pattern),
            "unique": False,
            "numInitialChunks": Int64(1),
        }
        for member in request.catalog.shards:
            if member.mongod.catalog.get(namespace) is not None:
                await member.execute(database, {"drop": name}, from_migrate=True)
        await create_like(like, primary, uuid)
        primary.mongod.set_shard_key(namespace, key.fields)
        await insert_documents(primary, namespace, documents)
        _note(request, collection, "reshardCollection", event)
        collection.uuid = uuid
        collection.chunks = ChunkMap(key, [Chunk(key.lowest, key.highest, primary.id)])
        await request.catalog.rewrite_collection(collection, source)
    return {}


def _arguments(request: Request) -> tuple[str, ShardKey]:
    return str(request.command[request.name]), ShardKey(request.command.get("key") or {})


def _sharded(request: Request, namespace: str) -> ShardedCollection:
    collection = request.catalog.collections.get(namespace)
    if collection is None:
        raise namespace_not_found(f"Collection {namespace} is not sharded")
    return collection


def _primary(request: Request, database: str) -> Member:
    primary = request.catalog.primary_of(database)
    assert primary is not None, "a sharded collection's database has a primary shard"
    return primary


def _longer(chunk: Chunk, old: ShardKey, key: ShardKey) -> Chunk:
    """Return a chunk with its bounds extended to the longer key."""
    more = (MinKey(),) * (len(key.fields) - len(old.fields))

    def bound(values: KeyValues) -> KeyValues:
        return key.highest if values == old.highest else (*values, *more)

    return Chunk(bound(chunk.low), bound(chunk.high), chunk.shard, version=chunk.version)


def _note(
    request: Request, collection: ShardedCollection, what: str, event: dict[str, Any]
) -> None:
    namespace = collection.namespace
    primary = _primary(request, namespace.partition(".")[0])
    note_event(primary, collection, {what: namespace}, {what: namespace, **event})
