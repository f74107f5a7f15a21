"""Our messages of a change stream and of a snapshot, made without Spark."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pymongo
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from spark_sink.debezium.message_batches import Messages, WithTransactions
from spark_sink.debezium.options import MessageOptions
from spark_sink.events.header import join_fragments
from spark_sink.options.stream_options import large_event_stages
from spark_sink.rows.event_rows import EventRows
from spark_sink.snapshot.document_events import DocumentEvents
from spark_sink.snapshot.plan import SnapshotCollection
from tests.debezium.engine import Message
from tests.doubles.event_history import runs_of

_CHANGES = ("insert", "update", "replace", "delete")


def of_stream(
    uri: str,
    databases: Sequence[str],
    start: Timestamp,
    last: str,
    options: MessageOptions,
    images: Mapping[str, str],
    oversize: Mapping[str, str],
) -> list[Message]:
    """Return the messages of a stream's events; `options` are those of the messages.

    The other arguments are those of `events_of_stream`.
    """
    return of_events(events_of_stream(uri, databases, start, last, images, oversize), options)


def events_of_stream(
    uri: str,
    databases: Sequence[str],
    start: Timestamp,
    last: str,
    images: Mapping[str, str],
    oversize: Mapping[str, str],
) -> list[RawBSONDocument]:
    """Return a stream's events, up to the first in the collection `last`.

    Args:
        uri: the connection string of a mongos or of a router.
        databases: whose events are wanted.
        start: the cluster time at which the stream begins.
        last: the name of a collection.
        images: the stream's fullDocument and fullDocumentBeforeChange, if any.
        oversize: the options for large events.
    """
    wanted = {"$match": {"ns.db": {"$in": list(databases)}, "operationType": {"$in": _CHANGES}}}
    events: list[RawBSONDocument] = []
    skipping, pipeline = large_event_stages(oversize, ())
    stages = [wanted, *skipping, *pipeline]
    with (
        pymongo.MongoClient(uri, document_class=RawBSONDocument) as client,
        client.watch(stages, start_at_operation_time=start, **images) as stream,
    ):
        for event in stream:
            events.append(event)
            if event.get("ns", {}).get("coll") == last:
                break
    whole = join_fragments(bytes(each.raw) for each in events)
    return list(map(RawBSONDocument, whole))


def of_documents(uri: str, databases: Sequence[str], options: MessageOptions) -> list[Message]:
    """Return the messages of a snapshot of databases."""
    found: list[Message] = []
    with pymongo.MongoClient[Any](uri) as client:
        for database in databases:
            for name in client[database].list_collection_names():
                found += of_collection(uri, database, name, options)
    return found


def of_collection(
    uri: str, database: str, name: str, options: MessageOptions, *, incremental: bool = False
) -> list[Message]:
    """Return the messages of a snapshot of a collection."""
    signal = {"type": "incremental"} if incremental else None
    reads = DocumentEvents(SnapshotCollection(database, name), Timestamp(1_700_000_000, 1), signal)
    with pymongo.MongoClient[Any](uri, document_class=RawBSONDocument) as client:
        run = reads.run([bytes(each.raw) for each in client[database][name].find()], set())
    return of_events(list(map(RawBSONDocument, run.events)), options)


def of_events(
    events: Sequence[RawBSONDocument],
    options: MessageOptions,
    clock: Callable[[], int] = time.time_ns,
) -> list[Message]:
    """Return the messages of events, made of rows in batches as Spark's tasks make them."""
    rows = EventRows().batches(runs_of(events))
    batches: Iterable[pa.RecordBatch] = Messages(options, clock)(rows)
    if options.transactions:
        batches = WithTransactions(options)(batches)
    return [Message(*row.values()) for batch in batches for row in batch.to_pylist()]
