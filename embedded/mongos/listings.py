"""Listings of databases, collections and indexes."""

from embedded.errors import namespace_not_found
from embedded.mongos.ddl import as_sent
from embedded.mongos.members import replies_of
from embedded.mongos.reads import open_cursor
from embedded.mongos.request import Request
from embedded.storage.bson_values import Document
from embedded.storage.queries import matches


async def list_collections(request: Request) -> Document:
    """List a database's collections; the primary shard has all of them."""
    primary = request.catalog.primary_of(request.database)
    namespace = f"{request.database}.$cmd.listCollections"
    if primary is None:
        return await open_cursor(request, namespace, [], None)
    reply = await request.send(primary, as_sent(request, without=["cursor"]))
    size = request.command.get("cursor", {}).get("batchSize")
    return await open_cursor(request, namespace, reply["cursor"]["firstBatch"], size)


async def list_indexes(request: Request) -> Document:
    """List a collection's indexes.

    Raises:
        CommandError: 26 NamespaceNotFound.
    """
    placement = request.placement(request.namespace)
    if placement is None:
        raise namespace_not_found(f"ns does not exist: {request.namespace}")
    member = placement.primary
    if placement.sharded is not None:
        member = request.catalog.holders(placement.sharded)[0]
    reply = await request.send(member, as_sent(request, without=["cursor"]))
    size = request.command.get("cursor", {}).get("batchSize")
    return await open_cursor(request, request.namespace, reply["cursor"]["firstBatch"], size)


async def list_databases(request: Request) -> Document:
    """List the databases of all shards and of the config server."""
    catalog = request.catalog
    commands = {member: {"listDatabases": 1} for member in (*catalog.shards, catalog.config)}
    replies = replies_of(await request.send_all(commands))
    found: dict[str, Document] = {}
    for member, reply in replies.items():
        for entry in reply["databases"]:
            name = entry["name"]
            if name == "local" or (member is catalog.config) != (name in ("admin", "config")):
                continue
            size = int(entry.get("sizeOnDisk", 0))
            known = found.setdefault(name, {"name": name, "sizeOnDisk": 0, "empty": False})
            known["sizeOnDisk"] += size
            known.setdefault("shards", {})[member.id] = size
    listed = [found[name] for name in sorted(found)]
    if "filter" in request.command:
        listed = [entry for entry in listed if matches(request.field("filter", dict), entry)]
    if request.command.get("nameOnly"):
        return {"databases": [{"name": entry["name"]} for entry in listed]}
    total = sum(entry["sizeOnDisk"] for entry in listed)
    return {"databases": listed, "totalSize": total, "totalSizeMb": total >> 20}
