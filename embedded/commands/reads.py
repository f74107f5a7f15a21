"""find, count, aggregate; getMore and killCursors.

Source: docs/protocol.md#cursor-replies (cursor replies).
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from bson.timestamp import Timestamp

from embedded.change_streams.cursor import (
    first_batch_size,
    is_change_stream,
    open_change_stream,
)
from embedded.commands.matching import select
from embedded.commands.request import Request, command
from embedded.cursors import FIRST_BATCH, ListCursor, OpenCursor
from embedded.errors import type_mismatch
from embedded.sessions import session_key
from embedded.storage.aggregation import aggregate
from embedded.storage.bson_values import Document
from embedded.storage.projection import project
from embedded.storage.queries import Matcher, sort_documents


def _documents(request: Request, ns: str, matcher: Matcher) -> Iterator[Document]:
    """Return the documents of a collection, a view or the oplog that match."""
    mongod = request.mongod
    if ns == "local.oplog.rs":
        entries: Iterable[Any] = list(mongod.oplog.since(Timestamp(0, 0)))
        return (entry for entry in entries if matcher(entry))
    collection = mongod.catalog.get(ns)
    if collection is not None:
        return select(request.unit.view(collection), matcher)
    view = mongod.catalog.view(ns)
    if view is None:
        return iter(())
    database = ns.partition(".")[0]
    source = list(_documents(request, f"{database}.{view['viewOn']}", Matcher({})))
    shown = aggregate(source, view["pipeline"])
    return (document for document in shown if matcher(document))


async def _reply(request: Request, cursor: OpenCursor, batch_size: int | None) -> Document:
    return await request.mongod.cursors.open(
        cursor,
        batch_size,
        session=session_key(request.session.lsid) if request.session is not None else None,
        single=bool(request.command.get("singleBatch")),
    )


async def reply_with(
    request: Request, ns: str, documents: Iterable[Document], batch_size: int | None
) -> Document:
    """Return the reply with the first of some documents; the mongos in this process gets all."""
    in_process = request.client.in_process
    cursor = ListCursor(ns, iter(documents), unbounded=in_process)
    return await _reply(request, cursor, None if in_process else batch_size)


@command("find", in_transactions=True)
async def find(request: Request) -> Document:
    """Return a cursor over the documents that match."""
    matcher = Matcher(request.field("filter", dict, {}))
    order = request.field("sort", dict, {})
    fields = request.field("projection", dict, {})
    skip = int(request.command.get("skip") or 0)
    limit = abs(int(request.command.get("limit") or 0))
    documents = _documents(request, request.ns, matcher)
    if order:
        documents = iter(sort_documents(documents, order))
    documents = islice(documents, skip, skip + limit if limit else None)
    if fields:
        documents = map(project(fields), documents)
    size = request.field("batchSize", (int, float), FIRST_BATCH)
    return await reply_with(request, request.ns, list(documents), size)


@command("count")
async def count(request: Request) -> Document:
    """Return the number of documents that match."""
    matcher = Matcher(request.field("query", dict, {}))
    size = sum(1 for _ in _documents(request, request.ns, matcher))
    size = max(0, size - int(request.command.get("skip") or 0))
    limit = abs(int(request.command.get("limit") or 0))
    return {"n": min(size, limit) if limit else size}


@command("aggregate", in_transactions=True)
async def run_aggregate(request: Request) -> Document:
    """Run a pipeline, or open a change stream."""
    pipeline = request.field("pipeline", list, None)
    if pipeline is None:
        raise type_mismatch("'pipeline' option must be specified as an array")
    size = first_batch_size(request.command)
    if is_change_stream(request.command):
        stream = open_change_stream(request.mongod, request.database, request.command)
        return await _reply(request, stream, size)
    documents = aggregate(_documents(request, request.ns, Matcher({})), pipeline)
    size = FIRST_BATCH if size is None else size
    return await reply_with(request, request.ns, documents, size)


@command("getMore", in_transactions=True)
async def get_more(request: Request) -> Document:
    """Return a cursor's next batch."""
    return await request.mongod.cursors.get_more(request.command)


@command("killCursors")
async def kill_cursors(request: Request) -> Document:
    """Close cursors and report which of them existed."""
    return request.mongod.cursors.kill_cursors(request.field("cursors", list, []))
