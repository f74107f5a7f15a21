"""Migrations between shards: of chunks, and of databases' unsharded collections.

The oplog marks a migration's writes, so that change streams skip them
(docs/protocol.md#definitions-of-collections).
"""

import asyncio
from collections.abc import Iterable
from itertools import islice

from bson import Binary

from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.chunk_map import Chunk, order
from embedded.mongos.request import RoutedRequest
from embedded.mongos.shards import Shard, raise_write_error
from embedded.storage.bson_values import Document, id_key
from embedded.storage.collection import Collection

_BATCH = 500


async def move_chunk(
    request: RoutedRequest, collection: ShardedCollection, chunk: Chunk, to: Shard
) -> None:
    """Move a chunk and its documents to another shard.

    The caller must hold the namespace exclusively.

    Raises:
        CommandError: the recipient's error, and nothing has moved; or the donor's, and the chunk
            has moved, but reads also find the documents that the donor has kept.
    """
    donor = request.catalog.shard(chunk.shard)
    if donor is to:
        return
    namespace = collection.namespace
    await copy_catalog_entry(donor, to, collection)
    low, high = order(chunk.low), order(chunk.high)
    local = donor.mongod.catalog.require(namespace)
    moving = [
        document
        for document in local.documents()
        if low <= order(collection.key.of_document(document)) < high
    ]
    await insert_documents(to, namespace, moving)
    collection.chunks.move(chunk, to.id)
    await _delete(donor, namespace, moving)


async def clone_database(
    donor: Shard, to: Shard, database: str, sharded: Iterable[str]
) -> list[Collection]:
    """Copy a database's collections to another shard, as ``movePrimary`` of 6.0 does.

    Change streams show the new collections and their indexes, but not the documents.
    Unsharded collections get new UUIDs. Of the ``sharded`` collections, given by namespace, only
    the catalog entry is copied, and only if the shard lacks it.

    Returns the donor's copied collections, which the caller must drop.

    Raises:
        CommandError: a shard's error; the copies have been dropped.
    """
    kept = set(sharded)
    copied: list[Collection] = []
    try:
        for collection in donor.mongod.catalog.collections(database):
            if to.mongod.catalog.get(collection.ns) is not None:
                continue
            if collection.ns in kept:
                await _create_like(collection, to, collection.uuid)
                continue
            await _create_like(collection, to, donor.mongod.new_uuid())
            copied.append(collection)
            await insert_documents(to, collection.ns, list(collection.documents()))
    except BaseException:
        await drop_cloned(to, database, copied)
        raise
    return copied


async def drop_cloned(shard: Shard, database: str, copied: Iterable[Collection]) -> None:
    """Drop the collections that ``clone_database`` copied, on either shard.

    Change streams show the drops.

    Raises:
        CommandError: the shard's error.
    """
    for collection in copied:
        await shard.execute(database, {"drop": collection.name})


async def copy_catalog_entry(donor: Shard, to: Shard, collection: ShardedCollection) -> None:
    """Make a shard know a sharded collection: the same UUID, options, indexes and shard key.

    Raises:
        CommandError: the shard's error, and it has no new collection.
    """
    if to.mongod.catalog.get(collection.namespace) is None:
        local = donor.mongod.catalog.require(collection.namespace)
        await _create_like(local, to, local.uuid, from_migrate=True)
    to.mongod.set_shard_key(collection.namespace, collection.key.fields)


async def _create_like(
    local: Collection, to: Shard, uuid: Binary, *, from_migrate: bool = False
) -> None:
    """Create a collection with the options and the indexes of ``local``, or nothing."""
    create = {"create": local.name, **local.options, "uuid": uuid}
    await to.execute(local.database, create, from_migrate=from_migrate)
    indexes = [index for name, index in local.indexes.items() if name != "_id_"]
    if indexes:
        command = {"createIndexes": local.name, "indexes": indexes}
        try:
            await to.execute(local.database, command, from_migrate=from_migrate)
        except BaseException:
            await to.execute(local.database, {"drop": local.name}, from_migrate=from_migrate)
            raise


async def insert_documents(to: Shard, namespace: str, documents: list[Document]) -> None:
    """Insert all of these documents or none, with writes that change streams skip.

    Raises:
        CommandError: the shard's error.
    """
    database, _, name = namespace.partition(".")
    stored = to.mongod.catalog.require(namespace)
    new = [document for document in documents if stored.get(id_key(document["_id"])) is None]
    try:
        for batch in _batches(documents):
            await asyncio.sleep(0)  # let other tasks run between batches
            insert = {"insert": name, "documents": batch}
            raise_write_error(await to.execute(database, insert, from_migrate=True))
    except BaseException:
        await _delete(to, namespace, new)
        raise


async def _delete(shard: Shard, namespace: str, documents: list[Document]) -> None:
    """Delete those of these documents that the shard has."""
    database, _, name = namespace.partition(".")
    for batch in _batches(documents):
        await asyncio.sleep(0)
        deletes = [{"q": {"_id": {"$eq": document["_id"]}}, "limit": 1} for document in batch]
        delete = {"delete": name, "deletes": deletes}
        raise_write_error(await shard.execute(database, delete, from_migrate=True))


def _batches(documents: Iterable[Document]) -> Iterable[list[Document]]:
    rest = iter(documents)
    while batch := list(islice(rest, _BATCH)):
        yield batch
