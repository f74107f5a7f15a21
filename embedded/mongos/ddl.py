"""Create, modify and drop collections and databases on every shard that holds them."""

from collections.abc import Iterable
from dataclasses import replace

from embedded.errors import CommandError, ErrorCode, namespace_exists, namespace_not_found
from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.request import Placement, RoutedRequest
from embedded.mongos.shards import Shard
from embedded.storage.bson_values import Document


async def create(request: RoutedRequest) -> Document:
    """Create a collection or view on its database's primary shard.

    Raises:
        CommandError: 48 NamespaceExists; the shard's error.
    """
    async with request.placement_for_write() as placement:
        if placement.sharded is not None:
            raise namespace_exists(request.namespace)
        return await request.send(placement.primary, request.as_sent(), write=True)


async def drop(request: RoutedRequest) -> Document:
    """Drop a collection: on all other shards in parallel, then on the primary shard.

    Raises:
        CommandError: 26 NamespaceNotFound.
    """
    namespace = request.namespace
    async with request.state.locks.exclusive(namespace):
        placement = request.placement_now(namespace)
        if placement is None:
            raise namespace_not_found()
        if placement.sharded is None:
            return await request.send(placement.primary, {"drop": request.collection})
        await drop_sharded(request, placement.sharded)
        return {}


async def drop_database(request: RoutedRequest) -> Document:
    """Drop a database on all shards.

    The order is: its sharded collections, the database on the primary shard, then on the other
    shards.

    Raises:
        CommandError: 20 IllegalOperation for admin and config.
    """
    database = request.database
    async with request.state.locks.exclusive_databases(database):
        primary = request.catalog.primary_of(database)
        if primary is None:
            return {"dropped": database}
        if primary is request.catalog.config:
            raise CommandError(ErrorCode.IllegalOperation, f"Cannot drop '{database}' database")
        shards = _with_collections(request.catalog.shards, database)
        for collection in request.catalog.sharded_in(database):
            await drop_sharded(request, collection)
        if primary in shards:
            await _drop_database_on(request, [primary])
        await _drop_database_on(request, [shard for shard in shards if shard is not primary])
        await request.catalog.forget_database(database)
    return {"dropped": database}


async def _drop_database_on(request: RoutedRequest, shards: list[Shard]) -> None:
    """Drop a database on some shards, even if it holds no collections there any more."""
    holders = _with_collections(shards, request.database)
    for shard in shards:
        shard.adopt_time()
        if shard not in holders:
            shard.mongod.journal.log_command(request.database, {"dropDatabase": 1})
    await request.send_all({shard: {"dropDatabase": 1} for shard in holders})
    for shard in shards:
        shard.report_time()


def _with_collections(shards: Iterable[Shard], database: str) -> list[Shard]:
    return [shard for shard in shards if shard.mongod.catalog.collections(database)]


async def drop_sharded(request: RoutedRequest, collection: ShardedCollection) -> None:
    """Drop a sharded collection on all shards; the primary shard comes last."""
    database, _, name = collection.namespace.partition(".")
    primary = request.catalog.primary_of(database)
    shards = shards_holding(request, collection.namespace)
    await request.catalog.forget_collection(collection)
    inner = replace(request, database=database)
    others = {shard: {"drop": name} for shard in shards if shard is not primary}
    await inner.send_all(others)
    if primary in shards:
        await inner.send(primary, {"drop": name})


async def rename_collection(request: RoutedRequest) -> Document:
    """Rename a collection on every shard that holds it.

    Raises:
        CommandError: 26 if the source does not exist; 48 if the target exists and dropTarget is not
            set; 20 if the two databases have different primary shards.
    """
    source, target = str(request.command["renameCollection"]), request.field("to", str)
    async with request.state.locks.exclusive(source, target):
        placement = request.placement_now(source)
        shards = shards_holding(request, source)
        if placement is None or not shards:
            raise namespace_not_found(f"Source collection {source} does not exist")
        _check_target(request, placement, target)
        await request.catalog.create_database(target.partition(".")[0], placement.primary)
        replaced = request.catalog.collections.get(target)
        others = [shard for shard in shards_holding(request, target) if shard not in shards]
        if replaced is not None:
            await request.catalog.forget_collection(replaced)
        inner = replace(request, database=target.partition(".")[0])
        drops = {other: {"drop": target.partition(".")[2]} for other in others}
        await inner.send_all(drops)
        command = request.as_sent()
        await request.send_all(dict.fromkeys(shards, command))
        if placement.sharded is not None:
            await request.catalog.rename_collection(placement.sharded, target)
    return {}


def _check_target(request: RoutedRequest, placement: Placement, target: str) -> None:
    primary = request.catalog.primary_of(target.partition(".")[0])
    if primary is not None and primary is not placement.primary:
        raise CommandError(
            ErrorCode.IllegalOperation, "Source and destination collections must be on same shard"
        )
    if target in request.catalog.collections and not request.command.get("dropTarget"):
        raise CommandError(ErrorCode.NamespaceExists, "target namespace exists")


async def create_indexes(request: RoutedRequest) -> Document:
    """Create indexes on every shard that holds the collection, and the collection if necessary.

    Raises:
        CommandError: the shards' errors.
    """
    if request.transaction is not None:
        async with request.placement_for_write() as placement:
            return await request.send(placement.primary, request.as_sent(), write=True)
    async with request.state.locks.exclusive(request.namespace):
        await request.catalog.create_database(request.database)
        return await _send_to_holders(request)


async def modify(request: RoutedRequest) -> Document:
    """Run dropIndexes or collMod on every shard that holds the collection.

    Raises:
        CommandError: 26 if the database does not exist; the shards' errors.
    """
    async with request.state.locks.exclusive(request.namespace):
        return await _send_to_holders(request)


async def _send_to_holders(request: RoutedRequest) -> Document:
    placement, command = request.placement_now(request.namespace), request.as_sent()
    if placement is None:
        raise namespace_not_found(f"ns not found {request.namespace}")
    if placement.sharded is None:
        return await request.send(placement.primary, command, write=True)
    shards = shards_holding(request, request.namespace)
    replies = await request.send_all(dict.fromkeys(shards, command))
    return {"raw": {shard.host: {**reply, "ok": 1.0} for shard, reply in replies.items()}}


def shards_holding(request: RoutedRequest, namespace: str) -> list[Shard]:
    """Return the shards that have a collection or view of this name."""
    return [
        shard
        for shard in request.catalog.shards
        if shard.mongod.catalog.get(namespace) is not None
        or shard.mongod.catalog.view(namespace) is not None
    ]
