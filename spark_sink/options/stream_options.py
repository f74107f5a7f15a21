"""The options of `spark.readStream.format("mergerouter")`.

Option names are those of MongoDB's `watch` and are not case sensitive, as everywhere in Spark. The
server validates its own options (values of fullDocument, stages of the pipeline), except where an
option would prevent that a repeated batch has the same content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from bson import json_util
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError
from spark_sink.events.positions import FromNow, Position
from spark_sink.options import values
from spark_sink.options.names import GetOption, canonical, parsed_option
from spark_sink.options.namespace_lists import NamespaceLists
from spark_sink.options.oversize import (
    OVERSIZE_OPTIONS,
    SPLIT_STAGE,
    image_mode,
    oversize_stages,
)
from spark_sink.options.retry_options import RETRY_OPTIONS, RetryPolicy, retry_options
from spark_sink.options.scope import Scope
from spark_sink.options.signal_options import SIGNAL_OPTIONS, SignalOptions, signal_options
from spark_sink.options.snapshot_options import (
    SNAPSHOT_OPTIONS,
    SnapshotOptions,
    snapshot_options,
)
from spark_sink.rows.field_edits import FieldEdit, excluded_fields, renamed_fields
from spark_sink.rows.typed_documents import document_schema

DEFAULT_MAX_EVENTS_PER_TRIGGER = 50_000
DEFAULT_IDLE_ADVANCE_SECONDS = 6 * 3600

_Value = TypeVar("_Value")


_NO_STAGES: tuple[Mapping[str, Any], ...] = ()
_NO_EDITS: tuple[FieldEdit, ...] = ()


# The authentication database: a path /admin of a URI is not a scope.
_AUTHENTICATION = "admin"


@dataclass(frozen=True)
class StreamOptions:
    """What to watch, from where, and in which batches.

    Args:
        uri: connection string of the router (or of a mongos).
        scope: the namespaces to watch.
        skipping, pipeline: stages after `$changeStream` and the scope's own.
        start: where a query without a checkpoint begins.
        max_events_per_trigger, max_bytes_per_trigger: about the most of a micro-batch; None: no
            limit.
        in_total_order: tasks read ranges of the merged stream instead of single shards.
        keeps_transactions: a micro-batch ends between transactions.
        reads_shards_directly: tasks read from the shards' own servers, not through the router.
        events_per_partition: about how many events a task reads; 0: one task for each shard, or one
            in total order.
        idle_advance_seconds: how far (in cluster time) the offset of an idle stream may fall behind
            before an empty micro-batch advances it, so that the oplogs still contain it.
        raw_documents: the columns of documents hold BSON instead of JSON.
        document_schema, document_type: the schema of typed documents, as given and parsed by Spark.
        rescues_unknown: whether a field outside of that schema is rescued.
        canonical_json: canonical instead of relaxed extended JSON in the JSON columns.
        heartbeat_interval: seconds of cluster time between two heartbeats; 0: none.
        field_edits: fields of documents that are left out or renamed, in this order.
        batch_mode: what `spark.read` reads: "snapshot", "changes", or None.
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
    keeps_transactions: bool = False
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
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    signals: SignalOptions = field(default_factory=SignalOptions)
    field_edits: tuple[FieldEdit, ...] = ()
    batch_mode: str | None = None
    end: Position | None = None

    @property
    def rows_per_chunk(self) -> int:
        """About how many documents a task of a snapshot reads."""
        return self.snapshot.chunk_rows or max(1, self.max_events_per_trigger // 4)

    @property
    def lacks_snapshot_filters(self) -> bool:
        """Whether the pipeline filters events, and no option filters a snapshot's documents."""
        return self.snapshot.filters is None and not all(map(_splits, self.pipeline))

    @property
    def splits_large_events(self) -> bool:
        """Whether the pipeline ends in `$changeStreamSplitLargeEvent`."""
        return bool(self.pipeline) and _splits(self.pipeline[-1])


def named_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under this module's names. Raises OptionError for unknown ones."""
    return canonical(options, _KNOWN, _ALIASES)


def parse_options(options: Mapping[str, str]) -> StreamOptions:
    """Return the options that a user gave, validated. Raises OptionError."""
    given = named_options(options)

    def get(name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        return parsed_option(name, parse, given[name]) if name in given else default

    uris = [get("uri", values.router_uri, None), get("uriFile", values.uri_in_file, None)]
    if all(uris):
        raise OptionError("options 'uri' and 'uriFile' exclude each other: set one of them")
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
        full_document=image_mode(get, "fullDocument"),
        full_document_before_change=image_mode(get, "fullDocumentBeforeChange"),
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
        in_total_order=get("ordering", values.one_of("perDocument", "total"), "") == "total",
        keeps_transactions=get("provide.transaction.metadata", values.boolean, False),
        reads_shards_directly=get("readFrom", values.one_of("router", "shards"), "") == "shards",
        events_per_partition=get("eventsPerPartition", values.positive, 0),
        idle_advance_seconds=get(
            "idleAdvanceSeconds", values.positive, DEFAULT_IDLE_ADVANCE_SECONDS
        ),
        raw_documents=get("documents", values.one_of("json", "raw", "typed"), "") == "raw",
        document_schema=get("documentSchema", document_schema, None),
        rescues_unknown=get("unknownFields", values.one_of("rescue", "ignore"), "") != "ignore",
        canonical_json=get("jsonFormat", values.one_of("relaxed", "canonical"), "") == "canonical",
        heartbeat_interval=get("heartbeat.interval.ms", values.milliseconds, 0.0),
        snapshot=snapshot_options(given, get),
        retry_policy=retry_options(given, get),
        signals=signal_options(get),
        field_edits=(
            *get("field.exclude.list", excluded_fields, _NO_EDITS),
            *get("field.renames", renamed_fields, _NO_EDITS),
        ),
        batch_mode=get("mode", values.one_of("snapshot", "changes"), None),
        end=_only(
            "endAtOperationTime and endAt",
            get("endAtOperationTime", values.cluster_time_position, None),
            get("endAt", values.resume_token, None),
        ),
    )
    _require_document_schema(given)
    _require_repeatable(parsed)
    _require_direct_reads_possible(parsed)
    _require_consistent_snapshot(parsed)
    return parsed


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
    "provide.transaction.metadata",
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
    *RETRY_OPTIONS,
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


def _require_document_schema(given: Mapping[str, str]) -> None:
    typed = given.get("documents", "").lower() == "typed"
    if typed and "documentSchema" not in given:
        raise OptionError(
            "option 'documents': typed requires option 'documentSchema', such as _id STRING, total "
            "DECIMAL(10,2)"
        )
    for name in ("documentSchema", "unknownFields"):
        if name in given and not typed:
            raise OptionError(f"option {name!r} is for documents=typed: set that, or remove it")


def _require_direct_reads_possible(options: StreamOptions) -> None:
    if not options.reads_shards_directly:
        return
    if "@" in urlsplit(options.uri).netloc:
        raise OptionError(
            "option 'readFrom': users of the cluster cannot log in on its shards: with a user in "
            "option 'uri' remove readFrom=shards, and tasks read through the router"
        )
    if options.full_document == "updateLookup":
        raise OptionError(
            "option 'readFrom': a shard looks up documents only on itself, and misses moved "
            "documents; remove readFrom=shards, or use fullDocument=whenAvailable or required"
        )


def _splits(stage: Mapping[str, Any]) -> bool:
    return SPLIT_STAGE in stage


def _require_consistent_snapshot(options: StreamOptions) -> None:
    snapshot = options.snapshot
    if options.signals.are_read and not snapshot.may_stream:
        raise OptionError(
            "options 'signalCollection' and 'signalFolder' are for streams: remove them with "
            "snapshotMode=initial_only"
        )
    if not (snapshot.reads_documents or options.batch_mode == "snapshot"):
        return
    if options.start != FromNow() and (snapshot.begins_queries or options.batch_mode is not None):
        raise OptionError(
            "a snapshot fixes the start of the stream: remove startAtOperationTime, resumeAfter "
            "and startAfter"
        )
    if options.lacks_snapshot_filters:
        raise OptionError(
            "option 'pipeline': its stages work on events, not on the documents of a snapshot. Set "
            "option 'snapshotFilters' to select the documents, such as "
            '{"shop.orders": {"open": true}}; {} is all'
        )


# A field path or a variable that reaches into fullDocument, but not into fullDocumentBeforeChange.
_FULL_DOCUMENT = re.compile(r'"\$*(ROOT\.)?fullDocument["\.]')


def _require_repeatable(options: StreamOptions) -> None:
    """Refuse a filter on a looked-up document, which selects other events each time it runs."""
    if options.full_document != "updateLookup":
        return
    stages = [("cursor.oversize.handling.mode", each) for each in options.skipping]
    stages += [("pipeline", each) for each in options.pipeline]
    for name, stage in stages:
        filters = "$match" in stage or "$redact" in stage
        if filters and _FULL_DOCUMENT.search(json_util.dumps(stage)):
            raise OptionError(
                f"option {name!r}: with fullDocument=updateLookup, a filter on fullDocument "
                "selects other events each time it runs, so that a batch could not be "
                "repeated; filter in Spark, or use fullDocument=whenAvailable or required with "
                "post-images"
            )


def _lists(get: GetOption) -> NamespaceLists:
    """Return Debezium's lists, under its names."""
    literal = get("filters.match.mode", values.one_of("regex", "literal"), "") == "literal"
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
    """Return the scope of the options, or else the one in the URI's path.

    A path beside a `database` option, and the path /admin, only name the authentication database.
    """
    path = urlsplit(uri).path.removeprefix("/")
    if database is None and path and path != _AUTHENTICATION:
        database, _, collection = unquote(path).partition(".")
        if collection and not collections:
            collections = parsed_option("uri", values.collection_names, collection)
    if collections and database is None:
        raise OptionError("option 'collection' requires option 'database'")
    return Scope(database, collections, lists)
