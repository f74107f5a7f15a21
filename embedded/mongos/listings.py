"""Listings of databases, collections and indexes."""

from embedded.errors import namespace_not_found
from embedded.mongos.reads import open_cursor
from embedded.mongos.request import RoutedRequest
from embedded.storage.bson_values import Document
from embedded.storage.queries import matches


async def list_collections(request: RoutedRequest) -> Document:
    """List a database's collections; the primary shard has all of them."""
    primary = request.catalog.primary_of(request.database)
    namespace = f"{request.database}.$cmd.listCollections"
    if primary is None:
        return await open_cursor(request, namespace, [], None)
    reply = await request.send(primary, request.as_sent(without=["cursor"]))
    size = request.command.get("cursor", {}).get("batchSize")
    return await open_cursor(request, namespace, reply["cursor"]["firstBatch"], size)


async def list_indexes(request: RoutedRequest) -> Document:
    """List a collection's indexes.

    Raises:
        CommandError: 26 NamespaceNotFound.
    """
    async with request.placement() as placement:
        if placement is None:
            raise namespace_not_found(f"ns does not exist: {request.namespace}")
        shard = placement.primary
        if placement.sharded is not None:
            shard = request.catalog.holders(placement.sharded)[0]
        reply = await request.send(shard, request.as_sent(without=["cursor"]))
    size = request.command.get("cursor", {}).get("batchSize")
    return await open_cursor(request, request.namespace, reply["cursor"]["firstBatch"], size)


async def list_databases(request: RoutedRequest) -> Document:
    """List the databases of all shards and of the config server; sizes are 0."""
    shards = (request.catalog.config, *request.catalog.shards)
    names = {"admin"}.union(*(shard.mongod.catalog.databases() for shard in shards))
    sizes: Document = {} if request.command.get("nameOnly") else {"sizeOnDisk": 0, "empty": False}
    listed = [{"name": name} | sizes for name in sorted(names)]
    if "filter" in request.command:
        listed = [entry for entry in listed if matches(request.field("filter", dict), entry)]
    return {"databases": listed} | ({"totalSize": 0, "totalSizeMb": 0} if sizes else {})
