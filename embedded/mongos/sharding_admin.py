"""Administrative commands: shards, their members, chunks and primary shards."""

from typing import Any

from embedded.errors import CommandError, ErrorCode, bad_value, namespace_not_found
from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.chunk_map import Chunk, order
from embedded.mongos.migration import clone_database, drop_cloned, move_chunk
from embedded.mongos.request import RoutedRequest
from embedded.mongos.shards import Shard
from embedded.storage.bson_values import Document

_OWN_DATABASES = frozenset({"admin", "config", "local"})


async def list_shards(request: RoutedRequest) -> Document:
    """Return the documents of config.shards."""
    return {"shards": await request.catalog.read("shards", {})}


async def start_shard(request: RoutedRequest) -> Document:
    """Start a shard server in this process, which addShard can add (not a MongoDB command).

    Raises:
        CommandError: 2 BadValue if a server of this name exists.
    """
    mongod = await request.state.servers.start_shard(str(request.command["startShard"]))
    return {"host": mongod.host_string}


async def add_shard(request: RoutedRequest) -> Document:
    """Add a running shard server to the cluster.

    Raises:
        CommandError: 6 HostUnreachable for a server outside of this process; 20 IllegalOperation if
            another shard has the name; 96 OperationFailed if the server and the cluster have a
            database of the same name.
    """
    host = str(request.command["addShard"])
    mongod = request.state.servers.find(host)
    if mongod is None:
        raise CommandError(ErrorCode.HostUnreachable, f"no shard server {host} in this process")
    name = str(request.command.get("name") or mongod.name)
    if request.catalog.has_shard(name):
        existing = request.catalog.shard(name)
        if existing.mongod is mongod:
            return {"shardAdded": name}
        raise CommandError(
            ErrorCode.IllegalOperation,
            f"A shard named {name} containing the replica set '{existing.mongod.name}' "
            "already exists"
        )  # fmt: skip
    brought = [db for db in mongod.catalog.databases() if db not in _OWN_DATABASES]
    async with request.state.locks.exclusive_databases(*brought):
        for database in brought:
            if request.catalog.primary_of(database) is not None:
                raise CommandError(
                    ErrorCode.OperationFailed,
                    f"can't add shard '{host}' because a local database '{database}' exists in "
                    "another shard"
                )  # fmt: skip
        shard = Shard(name, mongod, request.catalog.gossip)
        await request.catalog.add_shard(shard)
        for database in brought:
            await request.catalog.create_database(database, shard)
    request.touched[request.catalog.config] = None
    return {"shardAdded": name}


async def remove_shard(request: RoutedRequest) -> Document:
    """Drain a shard; each call advances its state: started, ongoing, completed.

    The second call moves the chunks to the other shards. The administrator must move the databases
    whose primary shard it is.

    Raises:
        CommandError: 20 IllegalOperation for the last shard.
    """
    shard = request.catalog.shard(str(request.command["removeShard"]))
    if not request.catalog.is_draining(shard.id):
        if not _takers(request, shard):
            raise CommandError(
                ErrorCode.IllegalOperation,
                "Operation not allowed because it would remove the last shard",
            )
        await request.catalog.set_draining(shard)
        to_move = request.catalog.databases_on(shard)
        return _drain_state("started", "draining started successfully", shard, to_move)
    await _move_chunks_away(request, shard)
    to_move = request.catalog.databases_on(shard)
    chunks = request.catalog.chunks_on(shard)  # others may have come meanwhile
    if chunks or to_move:
        remaining = {"chunks": chunks, "dbs": len(to_move), "jumboChunks": 0}
        state = _drain_state("ongoing", "draining ongoing", shard, to_move)
        return {"remaining": remaining, **state}
    for database in shard.mongod.catalog.databases():
        if database not in _OWN_DATABASES:  # an empty one would stop a later addShard
            await shard.execute(database, {"dropDatabase": 1}, from_migrate=True)
    await request.catalog.remove_shard(shard)
    request.touched[request.catalog.config] = None
    return {
        "msg": "removeshard completed successfully", "state": "completed", "shard": shard.id,
    }  # fmt: skip


def _drain_state(state: str, message: str, shard: Shard, databases: list[str]) -> Document:
    return {
        "msg": message,
        "state": state,
        "shard": shard.id,
        "note": "you need to drop or movePrimary these databases",
        "dbsToMove": databases,
    }


def _takers(request: RoutedRequest, leaving: Shard) -> list[Shard]:
    return [
        shard
        for shard in request.catalog.shards
        if shard is not leaving and not request.catalog.is_draining(shard.id)
    ]


async def _move_chunks_away(request: RoutedRequest, shard: Shard) -> None:
    takers = _takers(request, shard)
    for namespace in list(request.catalog.collections):
        async with request.state.locks.exclusive(namespace):
            collection = request.catalog.collections.get(namespace)
            if collection is None:  # it has been dropped or renamed meanwhile
                continue
            leaving = [chunk for chunk in collection.chunks if chunk.shard == shard.id]
            for index, chunk in enumerate(leaving):
                await move_chunk(request, collection, chunk, takers[index % len(takers)])


async def move_primary(request: RoutedRequest) -> Document:
    """Move a database's unsharded collections to another shard.

    Raises:
        CommandError: 26 NamespaceNotFound if the database does not exist; a shard's error.
    """
    database = str(request.command["movePrimary"])
    async with request.state.locks.exclusive_databases(database):
        to = request.catalog.shard(request.field("to", str))
        donor = request.catalog.primary_of(database)
        if donor is None:
            raise namespace_not_found(f"Database {database} could not be found")
        if donor is not to:
            sharded = [collection.namespace for collection in request.catalog.sharded_in(database)]
            copied = await clone_database(donor, to, database, sharded)
            await request.catalog.move_primary(database, to)
            await drop_cloned(donor, database, copied)
    return {}


async def split(request: RoutedRequest) -> Document:
    """Split a chunk at ``middle``.

    Raises:
        CommandError: 118 if the collection is not sharded; 2 BadValue for an invalid split point.
    """
    namespace = str(request.command["split"])
    async with request.state.locks.exclusive(namespace):
        collection = _sharded(request, namespace)
        collection.chunks.split(collection.key.bound(request.field("middle", dict)))
    return {}


async def move(request: RoutedRequest) -> Document:
    """Run moveChunk: move the chunk of ``find``, or the one that begins at ``min``.

    Raises:
        CommandError: 118 if the collection is not sharded; 2 BadValue if no chunk has the bounds; a
            shard's error.
    """
    namespace = str(request.command["moveChunk"])
    async with request.state.locks.exclusive(namespace):
        to = request.catalog.shard(request.field("to", str))  # it may have left during the wait
        collection = _sharded(request, namespace)
        chunk = _named_chunk(request, collection)
        await move_chunk(request, collection, chunk, to)
    request.touched[to] = None
    return {"millis": 0}


async def switch_member(request: RoutedRequest) -> Document:
    """Make a member fail or work again: ``{switchMember: "shard0" | "config", to: …}``.

    ``to`` is ``stop`` (close all connections and stop listening), ``start`` (again, with the same
    data at the same address), ``hang`` (send no replies), ``goOn``, ``stepDown``, ``stepUp`` or
    ``killCursors``. The calls of this mongos inside the process are not affected. This is not a
    MongoDB command.

    Raises:
        CommandError: 2 BadValue for an unknown switch or member.
    """
    name, switch = str(request.command["switchMember"]), request.command.get("to")
    servers = request.state.servers
    member = {**servers.shards, "config": servers.config}.get(name)
    if member is None:
        raise bad_value(f"the member {name!r} does not exist")
    actions: dict[Any, Any] = {
        "stop": member.stop,
        "start": member.start_again,
        "hang": member.hang,
        "goOn": member.go_on,
        "stepDown": member.step_down,
        "stepUp": member.step_up,
        "killCursors": member.cursors.close,
    }
    if switch not in actions:
        raise bad_value(f"unknown switch {switch!r}")
    done = actions[switch]()
    if done is not None:
        await done
    return {}


def _sharded(request: RoutedRequest, namespace: str) -> ShardedCollection:
    collection = request.catalog.collections.get(namespace)
    if collection is None:
        raise CommandError(
            118, f"Collection {namespace} is not sharded", code_name="NamespaceNotSharded"
        )
    return collection


def _named_chunk(request: RoutedRequest, collection: ShardedCollection) -> Chunk:
    key, chunks = collection.key, collection.chunks
    if "find" in request.command:
        return chunks.chunk_of(key.of_document(request.command["find"]))
    low = key.bound(request.field("min", dict))
    chunk = chunks.chunk_of(low)
    if order(chunk.low) != order(low):
        raise bad_value(f"no chunk begins at {request.command['min']}")
    return chunk
