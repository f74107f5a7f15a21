"""The options of `spark.readStream.format("mergerouter")`.

Option names are those of MongoDB's `watch` and are not case sensitive, as everywhere in Spark. The
server validates its own options (values of fullDocument, stages of the pipeline), except where an
option could give a repeated batch other content.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from bson import json_util
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError
from spark_sink.events.positions import FromNow, Position
from spark_sink.options import parsers
from spark_sink.options.declared import canonical, option, option_names, parsed, parsed_option
from spark_sink.options.parsers import DEFAULT_URI
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import MODE_OPTIONS, SnapshotOptions, snapshot_options
from spark_sink.rows.field_edits import FieldEdit, excluded_fields, masked_fields, renamed_fields
from spark_sink.rows.row_schema import document_schema

SPLIT_STAGE = "$changeStreamSplitLargeEvent"

_MODE = "cursor.oversize.handling.mode"
_THRESHOLD = "cursor.oversize.skip.threshold"
Stages = tuple[Mapping[str, Any], ...]


def large_event_stages(
    given: Mapping[str, str], pipeline: Stages, *, tolerant: bool = False
) -> tuple[Stages, Stages]:
    """Return the stages that skip large events, and the pipeline, which may end with the split.

    These are Debezium's `cursor.oversize` options, by default fail, or split in a tolerant stream.
    A document of more bytes than the threshold is skipped. Raises OptionError.
    """
    kinds = parsers.one_of("fail", "skip", "split")
    mode = parsed_option(_MODE, kinds, given.get(_MODE, "split" if tolerant else "fail"))
    threshold = parsed_option(_THRESHOLD, parsers.whole_number, given.get(_THRESHOLD, "0"))
    if (mode == "skip") != bool(threshold):
        raise OptionError(
            f"{_MODE}=skip requires option {_THRESHOLD!r}, a number of bytes, and vice versa"
        )
    if mode == "split" and not (pipeline and SPLIT_STAGE in pipeline[-1]):
        return (), (*pipeline, {SPLIT_STAGE: {}})
    return ((_only_up_to(threshold),) if mode == "skip" else ()), pipeline


def _only_up_to(size: int) -> Mapping[str, Any]:
    """Return a stage that drops events with a document of more than `size` bytes."""
    small = [
        {"$lte": [{"$bsonSize": f"${name}"}, size]}  # null where there is no document
        for name in ("fullDocument", "fullDocumentBeforeChange")
    ]
    return {"$match": {"$expr": {"$and": small}}}


# The authentication database: a path /admin of a URI is not a scope.
_AUTHENTICATION = "admin"


@dataclass(frozen=True)
class RetryPolicy:
    """How long failing requests are retried; times are in seconds.

    Args:
        initial_backoff: before the first retry; it doubles up to max_backoff, with random jitter.
        max_backoff: is at least `initial_backoff`.
        attempts: the most consecutive failures; None: as many as fit in max_seconds.
        restarts: how often the query restarts, after restart_delay; None is no limit.
        selection_timeout: for server selection.
    """

    initial_backoff: float = option("connect.backoff.initial.delay.ms", parsers.seconds, 0.05)
    max_backoff: float = option("connect.backoff.max.delay.ms", parsers.seconds, 2.0)
    attempts: int | None = option("connect.max.attempts", parsers.positive, None)
    max_seconds: ClassVar = 60.0
    restarts: int | None = option("errors.max.retries", parsers.unlimited_number, 0)
    restart_delay: float = option("retriable.restart.connector.wait.ms", parsers.seconds, 10.0)
    selection_timeout: float = option(
        "mongodb.server.selection.timeout.ms", parsers.positive_seconds, 2.5
    )

    def __str__(self) -> str:
        """Return the time or the number of attempts after which the query fails, for messages."""
        bound = f"{self.max_seconds:.0f} s"
        if self.attempts is not None:
            bound = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return f"{bound}, {self.restarts + 1} times" if self.restarts else bound


DEFAULT_RETRY_POLICY = RetryPolicy()


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
        events_per_partition: about how many events a task reads; 0: one task for each shard, or one
            in total order.
        idle_advance_seconds: how far (in cluster time) the offset of an idle stream may fall behind
            before an empty micro-batch advances it, so that the oplogs still contain it.
        raw_documents: the columns of documents hold BSON instead of JSON.
        document_schema, document_type: the schema of typed documents, as given and parsed by Spark.
        ignores_unknown: whether a field outside of that schema is left out, and not rescued.
        canonical_json: canonical instead of relaxed extended JSON in the JSON columns.
        heartbeat_interval: seconds of cluster time between two heartbeats; 0: none.
        excluded_fields, masked_fields, renamed_fields: fields of documents that are left out, then
            masked, with the salt of hashes, and then renamed.
        signal_collection, signal_folder: the channels of signals, a collection by database and
            name, and a folder.
        batch_mode: what `spark.read` reads: "snapshot", "changes", or None.
        end: where a batch read of changes ends; None: at the present.
        tolerant: whether no event may fail the stream. One that is too large arrives in fragments,
            one whose image the servers do not have without it, and one that cannot be read is a
            row.
    """

    uri: str = field(repr=False)
    scope: Scope = field(default_factory=Scope)
    skipping: tuple[Mapping[str, Any], ...] = option(
        "skipped.operations", parsers.skipped_operations, ()
    )
    pipeline: tuple[Mapping[str, Any], ...] = option("pipeline", parsers.stages, ())
    full_document: str | None = option("fullDocument", parsers.some_text, None)
    full_document_before_change: str | None = option(
        "fullDocumentBeforeChange", parsers.some_text, None
    )
    show_expanded_events: bool = option("showExpandedEvents", parsers.boolean, False)
    start: Position = field(default_factory=FromNow)
    max_events_per_trigger: int = option("maxEventsPerTrigger", parsers.positive, 50_000)
    max_bytes_per_trigger: int | None = option("maxBytesPerTrigger", parsers.size_in_bytes, None)
    in_total_order: bool = option("ordering", parsers.switch("perDocument", "total"), False)
    keeps_transactions: bool = option("provide.transaction.metadata", parsers.boolean, False)
    events_per_partition: int = option("eventsPerPartition", parsers.whole_number, 0)
    idle_advance_seconds: int = option("idleAdvanceSeconds", parsers.positive, 6 * 3600)
    raw_documents: bool = option("documents", parsers.switch("json", "raw", "typed"), False)
    document_schema: str | None = option("documentSchema", document_schema, None)
    document_type: StructType | None = None
    ignores_unknown: bool = option("unknownFields", parsers.switch("rescue", "ignore"), False)
    canonical_json: bool = option("jsonFormat", parsers.switch("relaxed", "canonical"), False)
    heartbeat_interval: float = option("heartbeat.interval.ms", parsers.seconds, 0.0)
    snapshot: SnapshotOptions = field(default_factory=SnapshotOptions)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    signal_collection: tuple[str, str] | None = option("signalCollection", parsers.namespace, None)
    signal_folder: str | None = option("signalFolder", parsers.some_text, None)
    excluded_fields: tuple[FieldEdit, ...] = option("field.exclude.list", excluded_fields, ())
    masked_fields: tuple[FieldEdit, ...] = option("field.masks", masked_fields, ())
    salt: bytes | None = option("field.masks.salt.file", parsers.salt_in_file, None, shown=False)
    renamed_fields: tuple[FieldEdit, ...] = option("field.renames", renamed_fields, ())
    batch_mode: str | None = option("mode", parsers.one_of("snapshot", "changes"), None)
    end: Position | None = None
    tolerant: bool = option("errors.tolerance", parsers.switch("none", "all"), False)

    @property
    def edits(self) -> tuple[FieldEdit, ...]:
        """The changes of documents, in their order."""
        masks = (edit.salted(self.salt) for edit in self.masked_fields)
        return (*self.excluded_fields, *masks, *self.renamed_fields)

    @property
    def idle_advance(self) -> float:
        """The seconds of cluster time that the offset of an idle stream may stay behind."""
        return min(self.idle_advance_seconds, self.heartbeat_interval or math.inf)

    @property
    def lacks_snapshot_filters(self) -> bool:
        """Whether the pipeline filters events, and no option filters a snapshot's documents."""
        return self.snapshot.filters is None and not all(map(_splits, self.pipeline))

    @property
    def reads_raw_updates(self) -> bool:
        """Whether servers send updates as the oplog has them (`events.update_descriptions`).

        A pipeline that names updateDescription needs the form that servers make.
        """
        return "updateDescription" not in json_util.dumps(self.pipeline)

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
    uri = required_uri(given, f"option 'uri' is required, for example {DEFAULT_URI}")
    chosen = parsed(
        StreamOptions,
        given,
        uri=uri,
        scope=_scope(uri, given),
        start=_position(given, "startAtOperationTime", "resumeAfter", "startAfter") or FromNow(),
        end=_position(given, "endAtOperationTime", "endAt"),
        snapshot=snapshot_options(given),
    )
    large, pipeline = large_event_stages(given, chosen.pipeline, tolerant=chosen.tolerant)
    chosen = replace(chosen, skipping=(*chosen.skipping, *large), pipeline=pipeline)
    if chosen.tolerant:  # no event requires an image
        images = (chosen.full_document, chosen.full_document_before_change)
        full, before = ("whenAvailable" if image == "required" else image for image in images)
        chosen = replace(chosen, full_document=full, full_document_before_change=before)
    _require_document_schema(given)
    _require_repeatable(chosen)
    _require_masks(chosen)
    _require_consistent_snapshot(chosen)
    return chosen


# Debezium's lists, by the fields of Scope.
_LISTS = {
    f"{rule}_{kind}s": f"{kind}.{rule}.list"
    for kind in ("database", "collection")
    for rule in ("include", "exclude")
}
_MATCH_MODE = "filters.match.mode"
_KNOWN = (
    *("uri", "uriFile", "database", "collection"),
    *("startAtOperationTime", "resumeAfter", "startAfter", "endAtOperationTime", "endAt"),
    *(*MODE_OPTIONS, *_LISTS.values(), _MATCH_MODE, _MODE, _THRESHOLD),
    *option_names(StreamOptions),
)
# Debezium's names of options that mean the same.
_ALIASES = {
    "mongodb.connection.string": "uri",
    "cursor.pipeline": "pipeline",
    "snapshot.mode": "snapshotMode",
    "incremental.snapshot.chunk.size": "snapshotChunkRows",
    "signal.data.collection": "signalCollection",
}


def required_uri(given: Mapping[str, str], missing: str, owner: str = "") -> str:
    """Return the connection string in one of two options, or raise OptionError."""
    if "uri" in given and "uriFile" in given:
        raise OptionError(f"options 'uri' and 'uriFile'{owner} exclude each other: set one of them")
    if "uri" in given:
        return parsed_option("uri", parsers.router_uri, given["uri"], owner)
    if "uriFile" in given:
        return parsed_option("uriFile", parsers.uri_in_file, given["uriFile"], owner)
    raise OptionError(missing)


def _position(given: Mapping[str, str], *names: str) -> Position | None:
    """Return the position in one of these options: a time if its name ends in Time, or a token."""
    positions: list[Position] = []
    for name in filter(given.__contains__, names):
        of_time = name.endswith("Time")
        parse: Any = parsers.cluster_time_position if of_time else parsers.resume_token
        positions.append(parsed_option(name, parse, given[name]))
    if len(positions) > 1:
        raise OptionError(f"only one of {', '.join(names[:-1])} and {names[-1]} can be given")
    return positions[0] if positions else None


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


def _splits(stage: Mapping[str, Any]) -> bool:
    return SPLIT_STAGE in stage


def _require_consistent_snapshot(options: StreamOptions) -> None:
    policy = options.snapshot.policy
    if (options.signal_collection or options.signal_folder) and not policy.streams:
        raise OptionError(
            "options 'signalCollection' and 'signalFolder' are for streams: remove them with "
            "snapshotMode=initial_only"
        )
    if not (policy.reads_documents or options.batch_mode == "snapshot"):
        return
    if options.start != FromNow() and (policy.at_first or options.batch_mode is not None):
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


# Stages that copy no value within an event.
_NO_COPIES = {"$match", "$redact", "$unset", SPLIT_STAGE}
# What reads fullDocument, but not fullDocumentBeforeChange; and what may copy it to another field.
_WHOLE_EVENT = r'"\$\$(ROOT|CURRENT)"'
_PATH = r'((ROOT|CURRENT)\.)?fullDocument["\.]'
_READS_DOCUMENT = re.compile(rf'{_WHOLE_EVENT}|"\$*{_PATH}')
_COPIES_DOCUMENT = re.compile(rf'{_WHOLE_EVENT}|"\$+{_PATH}|"\$getField"')


def _require_repeatable(options: StreamOptions) -> None:
    """Refuse a filter on a looked-up document, which selects other events each time it runs."""
    if options.full_document != "updateLookup":
        return
    stages = [("cursor.oversize.handling.mode", stage) for stage in options.skipping]
    stages += [("pipeline", stage) for stage in options.pipeline]
    is_copied = False
    for name, stage in stages:
        text, filters = json_util.dumps(stage), "$match" in stage or "$redact" in stage
        if filters and (is_copied or _READS_DOCUMENT.search(text)):
            raise OptionError(
                f"option {name!r}: with fullDocument=updateLookup, a filter on fullDocument "
                "selects other events each time it runs, so that a batch could not be "
                "repeated; filter in Spark, or use fullDocument=whenAvailable or required with "
                "post-images"
            )
        if not stage.keys() <= _NO_COPIES:
            is_copied = is_copied or _COPIES_DOCUMENT.search(text) is not None


def _require_masks(options: StreamOptions) -> None:
    """Refuse hashes without a salt, and stages that could copy a value to where no mask is."""
    masks = [edit.mask for edit in options.masked_fields if edit.mask is not None]
    if any(mask.rule == "hash" for mask in masks) and options.salt is None:
        raise OptionError(
            "option 'field.masks': a hash needs a salt: set field.masks.salt.file (of a job "
            "--salt-file) to a file with one, such as that of openssl rand -hex 32"
        )
    stages = {name for stage in options.pipeline for name in stage}
    if masks and (others := sorted(stages - _NO_COPIES)):
        raise OptionError(
            f"option 'pipeline': {others[0]} may copy a masked value to another field: with "
            f"field.masks, use {', '.join(sorted(_NO_COPIES))} only"
        )


def _scope(uri: str, given: Mapping[str, str]) -> Scope:
    """Return the scope of the options, or else the one in the URI's path.

    A path beside a `database` option, and the path /admin, only name the authentication database.
    Debezium's lists filter it further.
    """
    database: str | None = None
    collections: tuple[str, ...] = ()
    if "database" in given:
        database = parsed_option("database", parsers.database_name, given["database"])
    if "collection" in given:
        collections = parsed_option("collection", parsers.collection_names, given["collection"])
    path = urlsplit(uri).path.removeprefix("/")
    if database is None and path and path != _AUTHENTICATION:
        database, _, collection = unquote(path).partition(".")
        if collection and not collections:
            collections = parsed_option("uri", parsers.collection_names, collection)
    if collections and database is None:
        raise OptionError("option 'collection' requires option 'database'")
    literal = parsed_option(
        _MATCH_MODE, parsers.switch("regex", "literal"), given.get(_MATCH_MODE, "regex")
    )
    parse = parsers.names if literal else parsers.patterns
    lists: dict[str, Any] = {
        field: tuple(sorted(parsed_option(name, parse, given[name])))  # in one order: to compare
        for field, name in _LISTS.items()
        if name in given
    }
    for kind in ("databases", "collections"):
        if f"include_{kind}" in lists and f"exclude_{kind}" in lists:
            raise OptionError("only one of an include list and its exclude list can be given")
    return Scope(database, tuple(sorted(collections)), literal=literal and bool(lists), **lists)
