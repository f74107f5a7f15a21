"""The options of `spark.readStream.format("mergerouter")`.

Option names are those of MongoDB's `watch` and are not case sensitive, as everywhere in Spark.
What the server checks (values of fullDocument, stages of the pipeline) is left to the server,
except where an option would break the promise that a replayed batch has the same content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from bson import json_util
from bson.errors import BSONError
from pyspark.sql.types import StructType

from spark_sink import option_values as values
from spark_sink.errors import OptionError
from spark_sink.field_edits import FieldEdit, excluded_fields, renamed_fields
from spark_sink.namespace_lists import NamespaceLists
from spark_sink.option_names import GetOption, canonical
from spark_sink.oversize import OVERSIZE_OPTIONS, SPLIT_STAGE, oversize_stages
from spark_sink.patience import PATIENCE_OPTIONS, Patience, patience_options
from spark_sink.positions import FromNow, Position
from spark_sink.scope import Scope
from spark_sink.signals.signal_options import SIGNAL_OPTIONS, SignalOptions, signal_options
from spark_sink.snapshot.snapshot_options import (
    SNAPSHOT_OPTIONS,
    SnapshotOptions,
    snapshot_options,
)
from spark_sink.typed_documents import document_schema

DEFAULT_MAX_EVENTS_PER_TRIGGER = 50_000
DEFAULT_IDLE_ADVANCE_SECONDS = 6 * 3600

_Value = TypeVar("_Value")


_NO_STAGES: tuple[Mapping[str, Any], ...] = ()
_NO_EDITS: tuple[FieldEdit, ...] = ()


# The database of users: a path /admin of a URI names no scope.
_AUTHENTICATION = "admin"


@dataclass(frozen=True)
class StreamOptions:
    """What to watch, from where, and in which portions.

    uri: connection string of the router (or of a mongos).
    scope: the namespaces to watch.
    skipping, pipeline: stages after `$changeStream` and the scope's own.
    start: where a query without a checkpoint begins.
    max_events_per_trigger, max_bytes_per_trigger: about the most of a micro-batch; bytes None: no
        limit.
    in_total_order: tasks read stretches of the merged stream, not parts of single shards.
    reads_shards_directly: tasks read their shards from the shards' servers, not through the router.
    events_per_partition: a micro-batch is cut so that a task reads about so many events; 0: one
        task for each shard, or one in total order.
    idle_advance_seconds: how far (in cluster time) the offset of a stream without events may fall
        behind before an empty micro-batch moves it on, so that a restart finds it in the oplogs.
    raw_documents: the columns of documents hold BSON instead of JSON.
    document_schema: of typed documents, as it was given; document_type: the same, parsed by Spark;
    rescues_unknown: whether a field that it lacks does not fit.
    canonical_json: canonical instead of relaxed extended JSON in the JSON columns.
    heartbeat_interval: seconds of cluster time between two rows of heartbeats; 0: there are none.
    snapshot: whether and how documents are read beside the events.
    patience: how long a request is tried again while it fails in a way that may pass.
    signals: from where a stream takes signals.
    field_edits: fields of documents that are left out or renamed, in this order.
    batch_mode: what a batch read (`spark.read`) reads: "snapshot", "changes", or None.
    end: where a batch read of changes ends; None: at the present.
    """

    uri: str = field(repr=False)
    scope: Scope = field(default_factory=Scope)
    skipping: tuple[Mapping[str, Any], ...] = ()
    pipeline: tuple[Mapping[str, Any], ...] = ()
    full_document: str | None = None
    full_document_before_change: str | None = None
    show_expanded_events: bool = False
    start: Position = field(default_factory=FromNow)
    max_events_per_trigger: int = DEFAULT_MAX_EVENTS_PER_TRIGGER
    max_bytes_per_trigger: int | None = None
    in_total_order: bool = False
    reads_shards_directly: bool = False
    events_per_partition: int = 0
    idle_advance_seconds: int = DEFAULT_IDLE_ADVANCE_SECONDS
    raw_documents: bool = False
    document_schema: str | None = None
    document_type: StructType | None = None
    rescues_unknown: bool = True
    canonical_json: bool = False
    heartbeat_interval: float = 0.0
    snapshot: SnapshotOptions = field(default_factory=SnapshotOptions)
    patience: Patience = field(default_factory=Patience)
    signals: SignalOptions = field(default_factory=SignalOptions)
    field_edits: tuple[FieldEdit, ...] = ()
    batch_mode: str | None = None
    end: Position | None = None

    @property
    def rows_per_chunk(self) -> int:
        """About how many documents a task of a snapshot reads."""
        return self.snapshot.chunk_rows or max(1, self.max_events_per_trigger // 4)

    @property
    def leaves_documents_open(self) -> bool:
        """Whether the pipeline narrows events, and nothing defines a snapshot's documents."""
        return self.snapshot.filters is None and not all(map(_splits, self.pipeline))

    @property
    def splits_large_events(self) -> bool:
        """Whether the pipeline ends in `$changeStreamSplitLargeEvent`."""
        return bool(self.pipeline) and _splits(self.pipeline[-1])


def named_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options under this module's names for them. Raises OptionError for unknown ones."""
    return canonical(options, _KNOWN, _ALIASES)


def parse_options(options: Mapping[str, str]) -> StreamOptions:
    """The options that a user gave, checked. Raises OptionError."""
    given = named_options(options)

    def get(name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        return _checked(name, parse, given[name]) if name in given else default

    uris = [get("uri", values.router_uri, None), get("uriFile", values.uri_in_file, None)]
    if all(uris):
        raise OptionError("only one of uri and uriFile can be given")
    uri = uris[0] or uris[1]
    if uri is None:
        raise OptionError("option 'uri' is required, for example mongodb://127.0.0.1:27020")
    large, pipeline = oversize_stages(get, get("pipeline", values.stages, ()))
    parsed = StreamOptions(
        uri=uri,
        scope=_scope(
            uri,
            get("database", values.database_name, None),
            get("collection", values.collection_names, ()),
            _lists(get),
        ),
        pipeline=pipeline,
        skipping=(*get("skipped.operations", values.skipped_operations, _NO_STAGES), *large),
        full_document=get("fullDocument", values.some_text, None),
        full_document_before_change=get("fullDocumentBeforeChange", values.some_text, None),
        show_expanded_events=get("showExpandedEvents", values.boolean, False),
        start=_only(
            "startAtOperationTime, resumeAfter and startAfter",
            get("startAtOperationTime", values.cluster_time_position, None),
            get("resumeAfter", values.resume_token, None),
            get("startAfter", values.resume_token, None),
        )
        or FromNow(),
        max_events_per_trigger=get(
            "maxEventsPerTrigger", values.positive, DEFAULT_MAX_EVENTS_PER_TRIGGER
        ),
        max_bytes_per_trigger=get("maxBytesPerTrigger", values.size_in_bytes, None),
        in_total_order=get("ordering", values.total_order, False),
        reads_shards_directly=get("readFrom", values.reads_shards, False),
        events_per_partition=get("eventsPerPartition", values.positive, 0),
        idle_advance_seconds=get(
            "idleAdvanceSeconds", values.positive, DEFAULT_IDLE_ADVANCE_SECONDS
        ),
        raw_documents=get("documents", values.document_form, "json") == "raw",
        document_schema=get("documentSchema", document_schema, None),
        rescues_unknown=get("unknownFields", values.rescues_unknown, True),
        canonical_json=get("jsonFormat", values.canonical_json, False),
        heartbeat_interval=get("heartbeat.interval.ms", values.milliseconds, 0.0),
        snapshot=snapshot_options(given, get),
        patience=patience_options(given, get),
        signals=signal_options(get),
        field_edits=(
            *get("field.exclude.list", excluded_fields, _NO_EDITS),
            *get("field.renames", renamed_fields, _NO_EDITS),
        ),
        batch_mode=get("mode", values.batch_mode, None),
        end=_only(
            "endAtOperationTime and endAt",
            get("endAtOperationTime", values.cluster_time_position, None),
            get("endAt", values.resume_token, None),
        ),
    )
    _refuse_half_typed(given)
    _refuse_unrepeatable(parsed)
    _refuse_direct(parsed)
    _refuse_snapshot(parsed)
    return parsed


def _checked(name: str, parse: Callable[[str], _Value], text: str) -> _Value:
    try:
        return parse(text)
    except (ValueError, TypeError, BSONError) as error:
        raise OptionError(f"option {name!r}: {error}") from error


_KNOWN = (
    "uri",
    "uriFile",
    "database",
    "collection",
    "pipeline",
    "fullDocument",
    "fullDocumentBeforeChange",
    "showExpandedEvents",
    "startAtOperationTime",
    "resumeAfter",
    "startAfter",
    "maxEventsPerTrigger",
    "maxBytesPerTrigger",
    "ordering",
    "readFrom",
    "eventsPerPartition",
    "idleAdvanceSeconds",
    "documents",
    "documentSchema",
    "unknownFields",
    "jsonFormat",
    *SNAPSHOT_OPTIONS,
    *OVERSIZE_OPTIONS,
    "heartbeat.interval.ms",
    *PATIENCE_OPTIONS,
    *SIGNAL_OPTIONS,
    "mode",
    "endAtOperationTime",
    "endAt",
    "database.include.list",
    "database.exclude.list",
    "collection.include.list",
    "collection.exclude.list",
    "filters.match.mode",
    "skipped.operations",
    "field.exclude.list",
    "field.renames",
)
# Debezium's names of options that mean the same.
_ALIASES = {
    "mongodb.connection.string": "uri",
    "cursor.pipeline": "pipeline",
    "snapshot.mode": "snapshotMode",
    "incremental.snapshot.chunk.size": "snapshotChunkRows",
    "signal.data.collection": "signalCollection",
}


def _only(names: str, *positions: Position | None) -> Position | None:
    given = [position for position in positions if position is not None]
    if len(given) > 1:
        raise OptionError(f"only one of {names} can be given")
    return given[0] if given else None


def _refuse_half_typed(given: Mapping[str, str]) -> None:
    typed = given.get("documents", "").lower() == "typed"
    if typed and "documentSchema" not in given:
        raise OptionError(
            "option 'documents': typed needs option 'documentSchema', such as _id STRING, total "
            "DECIMAL(10,2)"
        )
    for name in ("documentSchema", "unknownFields"):
        if name in given and not typed:
            raise OptionError(f"option {name!r} is for documents=typed: set that, or leave it out")


def _refuse_direct(options: StreamOptions) -> None:
    if not options.reads_shards_directly:
        return
    if "@" in urlsplit(options.uri).netloc:
        raise OptionError(
            "option 'readFrom': users of the cluster cannot log in on its shards: with a user in "
            "option 'uri' leave readFrom=shards out, and tasks read through the router"
        )
    if options.full_document == "updateLookup":
        raise OptionError(
            "option 'readFrom': a shard looks up a document on itself alone, and finds none that "
            "has moved; leave readFrom=shards out, or use fullDocument=whenAvailable or required"
        )


def _splits(stage: Mapping[str, Any]) -> bool:
    return SPLIT_STAGE in stage


def _refuse_snapshot(options: StreamOptions) -> None:
    snapshot = options.snapshot
    if options.signals.are_read and not snapshot.may_stream:
        raise OptionError(
            "options 'signalCollection' and 'signalFolder' are for streams: leave them out with "
            "snapshotMode=initial_only"
        )
    if not (snapshot.reads_documents or options.batch_mode == "snapshot"):
        return
    if options.start != FromNow() and (snapshot.begins_queries or options.batch_mode is not None):
        raise OptionError(
            "a snapshot pins down where the stream begins: leave startAtOperationTime, resumeAfter "
            "and startAfter out"
        )
    if options.leaves_documents_open:
        raise OptionError(
            "option 'pipeline': its stages work on events, not on the documents of a snapshot. Say "
            "by option 'snapshotFilters' which documents are read, such as "
            '{"shop.orders": {"open": true}}; {} is all'
        )


# A field path or a variable that reaches into fullDocument, but not into fullDocumentBeforeChange.
_FULL_DOCUMENT = re.compile(r'"\$*(ROOT\.)?fullDocument["\.]')


def _refuse_unrepeatable(options: StreamOptions) -> None:
    """A filter on a document looked up later answers differently each time it is asked."""
    if options.full_document != "updateLookup":
        return
    stages = [("cursor.oversize.handling.mode", each) for each in options.skipping]
    stages += [("pipeline", each) for each in options.pipeline]
    for name, stage in stages:
        filters = "$match" in stage or "$redact" in stage
        if filters and _FULL_DOCUMENT.search(json_util.dumps(stage)):
            raise OptionError(
                f"option {name!r}: with fullDocument=updateLookup, a filter on fullDocument "
                "selects other events whenever it is run again, so that no batch could be "
                "repeated; filter in Spark, or use fullDocument=whenAvailable or required with "
                "post-images"
            )


def _lists(get: GetOption) -> NamespaceLists:
    """Debezium's lists, under its names."""
    literal = get("filters.match.mode", values.is_literal, False)
    parse = values.names if literal else values.patterns
    none: tuple[str, ...] = ()
    lists = NamespaceLists(
        get("database.include.list", parse, none),
        get("database.exclude.list", parse, none),
        get("collection.include.list", parse, none),
        get("collection.exclude.list", parse, none),
        literal,
    )
    if (lists.databases and lists.not_databases) or (lists.collections and lists.not_collections):
        raise OptionError("only one of an include list and its exclude list can be given")
    return lists


def _scope(
    uri: str, database: str | None, collections: tuple[str, ...], lists: NamespaceLists
) -> Scope:
    """The scope of the options, or else the one that the URI's path names.

    A path beside a `database` option, and the path /admin, only say where a user is known.
    """
    path = urlsplit(uri).path.removeprefix("/")
    if database is None and path and path != _AUTHENTICATION:
        database, _, collection = unquote(path).partition(".")
        if collection and not collections:
            collections = _checked("uri", values.collection_names, collection)
    if collections and database is None:
        raise OptionError("option 'collection' needs option 'database'")
    return Scope(database, collections, lists)
