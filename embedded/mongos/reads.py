"""Reads over the shards: documents, the cursors over them, and the listings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from embedded.change_streams.user_stages import UserStages
from embedded.cursors import FIRST_BATCH, ListCursor
from embedded.errors import CommandError, ErrorCode, namespace_not_found
from embedded.mongos.request import Placement, RoutedRequest
from embedded.mongos.shards import Shard
from embedded.mongos.targeting import targets_of_filter
from embedded.sessions import session_key
from embedded.storage.aggregation import aggregate as run_pipeline
from embedded.storage.bson_values import Document
from embedded.storage.projection import project
from embedded.storage.queries import matches, sort_documents

Pipeline = Sequence[Mapping[str, Any]]

_CHANGE_STREAM_STAGES = ("$changeStream", "$_internalChangeStream")
_FIND_OPTIONS = ("collation", "hint", "min", "max", "allowDiskUse")


async def find(request: RoutedRequest) -> Document:
    """Return a cursor over the documents that match, merged from the shards in the sort order."""
    command = request.command
    skip, limit = int(command.get("skip", 0)), abs(int(command.get("limit", 0)))
    filter_, sort = request.field("filter", dict, {}), request.field("sort", dict, {})
    projection = request.field("projection", dict, {})
    async with request.placement() as placement:
        _check_uuid(request, placement)
        if placement is None:
            return await _cursor(request, [])
        shards = shards_for(request, placement, filter_)
        inner: Document = {"find": request.collection, "filter": filter_}
        inner |= {name: command[name] for name in _FIND_OPTIONS if name in command}
        if sort:
            inner["sort"] = sort
        if len(shards) == 1:
            inner |= {"projection": projection, "skip": skip, "limit": limit}
            reply = await request.send(shards[0], inner)
            return await _cursor(request, reply["cursor"]["firstBatch"])
        if limit:
            inner["limit"] = skip + limit
        documents = await _documents(request, shards, inner)
        if sort:
            documents = sort_documents(documents, sort)
        chosen = documents[skip : skip + limit if limit else None]
        if projection:
            chosen = [*map(project(projection), chosen)]
        return await _cursor(request, chosen)


async def count(request: RoutedRequest) -> Document:
    """Return the number of documents that match."""
    options = ("query", "hint", "collation")
    skip, limit = int(request.command.get("skip", 0)), abs(int(request.command.get("limit", 0)))
    async with request.placement() as placement:
        if placement is None:
            return {"n": 0}
        shards = shards_for(request, placement, request.field("query", dict, {}))
        inner = {"count": request.collection}
        inner |= {name: request.command[name] for name in options if name in request.command}
        replies = await request.send_all(dict.fromkeys(shards, inner))
        total = sum(int(reply["n"]) for reply in replies.values())
    total = max(0, total - skip)
    return {"n": min(total, limit) if limit else total}


async def aggregate(request: RoutedRequest) -> Document:
    """Run a pipeline over a collection, or over given documents.

    Raises:
        CommandError: the errors of pipelines and shards.
    """
    pipeline = request.field("pipeline", list)
    cursor = request.command.get("cursor", {})
    size = cursor.get("batchSize") if isinstance(cursor, Mapping) else None
    if not isinstance(request.command["aggregate"], str):
        documents = _from_given(request, pipeline)
        return await open_cursor(request, f"{request.database}.$cmd.aggregate", documents, size)
    documents = await _over_collection(request, pipeline)
    return await open_cursor(request, request.namespace, documents, size)


def _from_given(request: RoutedRequest, pipeline: Pipeline) -> list[Document]:
    """Run a pipeline over the documents in its ``$documents`` stage."""
    if not pipeline or "$documents" not in pipeline[0]:
        return []
    documents, rest = pipeline[0]["$documents"], pipeline[1:]
    if isinstance(documents, Mapping) and documents.keys() == {"$literal"}:
        documents = documents["$literal"]
    if not isinstance(documents, list) or not all(isinstance(stage, dict) for stage in documents):
        raise CommandError(5858203, "$documents must be an array of objects")
    stages = UserStages.of(rest, request.command)
    results = (stages.apply(document) for document in documents if stages.wants(document))
    return [result for result in results if result is not None]


async def _over_collection(request: RoutedRequest, pipeline: Pipeline) -> list[Document]:
    filter_: Mapping[str, Any] = {}
    if pipeline and "$match" in pipeline[0]:
        filter_, pipeline = pipeline[0]["$match"], pipeline[1:]
    async with request.placement() as placement:
        if placement is None:
            return []
        shards = shards_for(request, placement, filter_)
        inner: Document = {"find": request.collection, "filter": filter_}
        documents = await _documents(request, shards, inner)
    return run_pipeline(documents, pipeline)


def refuse_change_stream(command: Document) -> None:
    """Refuse an ``aggregate``, or its ``explain``, with a change stream stage, valid or not.

    Only the router opens change streams. A real mongos never answers an aggregate with this code,
    so the router recognizes that it must itself report the errors of a malformed request.

    Raises:
        CommandError: 59.
    """
    inner = command.get("explain", command)
    pipeline = inner.get("pipeline") if isinstance(inner, Mapping) else None
    stages = pipeline if isinstance(pipeline, list) else []
    names = [name for stage in stages if isinstance(stage, Mapping) for name in stage]
    if any(name.startswith(_CHANGE_STREAM_STAGES) for name in names):
        raise CommandError(
            ErrorCode.CommandNotFound,
            "this endpoint does not serve change streams; open them through "
            "mergerouter, or on a shard"
        )  # fmt: skip


def _check_uuid(request: RoutedRequest, placement: Placement | None) -> None:
    """Check that the collection has the command's ``collectionUUID``, if it has one.

    Raises:
        CommandError: 361 CollectionUUIDMismatch.
    """
    wanted = request.command.get("collectionUUID")
    if wanted is None:
        return
    stored = None if placement is None else placement.primary.mongod.catalog.by_uuid(wanted)
    if placement is not None and placement.sharded is not None:
        is_same = bytes(placement.sharded.uuid) == bytes(wanted)
    else:
        is_same = stored is not None and stored.ns == request.namespace
    if not is_same:
        raise CommandError(
            ErrorCode.CollectionUUIDMismatch,
            "Collection UUID does not match that specified",
            extra={
                "db": request.database,
                "collectionUUID": wanted,
                "expectedCollection": request.collection,
                "actualCollection": None if stored is None else stored.name,
            },
        )


def shards_for(
    request: RoutedRequest, placement: Placement, filter_: Mapping[str, Any]
) -> list[Shard]:
    """Return the shards that a read with ``filter_`` is sent to."""
    if placement.sharded is None:
        return [placement.primary]
    return request.catalog.named(targets_of_filter(placement.sharded, filter_))


async def _documents(
    request: RoutedRequest, shards: Sequence[Shard], command: Document
) -> list[Document]:
    """Return the documents that a command finds on several shards, shard by shard."""
    replies = await request.send_all(dict.fromkeys(shards, command))
    return [each for reply in replies.values() for each in reply["cursor"]["firstBatch"]]


async def open_cursor(
    request: RoutedRequest, namespace: str, documents: Iterable[Document], batch_size: int | None
) -> Document:
    """Return the first reply over ``documents`` and keep the rest for getMore."""
    lsid = request.command.get("lsid")
    return await request.state.cursors.open(
        ListCursor(namespace, iter(documents)),
        FIRST_BATCH if batch_size is None else batch_size,
        session=session_key(lsid) if lsid else None,
        single=bool(request.command.get("singleBatch")),
    )


async def get_more(request: RoutedRequest) -> Document:
    """Return a cursor's next batch."""
    return await request.state.cursors.get_more(request.command)


async def kill_cursors(request: RoutedRequest) -> Document:
    """Close cursors and report which of them existed."""
    return request.state.cursors.kill_cursors(request.field("cursors", list))


async def _cursor(request: RoutedRequest, documents: Iterable[Document]) -> Document:
    size = request.command.get("batchSize")
    if request.command.get("limit", 0) < 0:
        documents, size = list(documents), None
    return await open_cursor(request, request.namespace, documents, size)


# Listings of databases, collections and indexes.


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
