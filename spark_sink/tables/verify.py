"""Compares tables with the cluster: a current table with its collections, bronze with the stream.

The collections keep changing, so both sides are advanced to one later position of the stream: the
documents are read as a snapshot, and then the events up to that position are applied to the table's
rows and to the snapshot's. What differs then differed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import bson
import pyarrow as pa
import pyarrow.compute as pc
from bson.timestamp import Timestamp
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from spark_sink.events.positions import AtTime, Token, after, key_of, time_in
from spark_sink.events.slices import ARRAY, DOCUMENT, Slice, elements_of
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import MODE_OPTIONS
from spark_sink.options.stream_options import named_options, parse_options
from spark_sink.source.offsets import Offset
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.ddl_events import DDL_TYPES, SNAPSHOT_END, ddl_event_of
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.fold import Fold
from spark_sink.tables.key_ranges import KEY_COLUMNS
from spark_sink.tables.prepare import PREPARED, Prepare, batch_of
from spark_sink.tables.table_form import FormedRows, TableForm
from spark_sink.tables.table_scan import read_rows
from spark_sink.tables.table_state import unread_after


class Advance:
    """Applies rows of the source, `changes`, to rows of a current table or of a snapshot.

    An event that cannot be applied removes its document, as in a job's table.

    Args:
        keys: the fields of the document key that identify a document.
        changes: with CHANGE_COLUMNS and `op`.
        form: of the rows that are returned, without KEY_RANGE.
    """

    def __init__(
        self, keys: Sequence[str], changes: DataFrame, form: TableForm | None = None
    ) -> None:
        found = changes.where(F.col("operationType").isin(*DDL_TYPES)).select("event").collect()
        self.ddl_events = sorted(ddl_event_of(bytes(row.event)) for row in found)
        """The DDL events among the changes."""
        self._prepare = Prepare(keys, self.ddl_events)
        self._changes = self._prepared(changes.where(F.col("op").isNotNull()))
        self._form = form or TableForm()

    def of_table(self, rows: DataFrame) -> DataFrame:
        """Return the rows that `CurrentTable.versions` become."""
        return self._folded(rows.mapInArrow(self._prepare.table_rows, PREPARED))

    def of_documents(self, rows: DataFrame) -> DataFrame:
        """Return the rows that a snapshot's rows of the source become, as `of_table`."""
        return self._folded(self._prepared(rows))

    def _prepared(self, rows: DataFrame) -> DataFrame:
        columns = rows.select("database", "collection", "token", "event")
        return columns.mapInArrow(self._prepare.events, PREPARED)

    def _folded(self, rows: DataFrame) -> DataFrame:
        by_key = rows.union(self._changes).repartition(*KEY_COLUMNS)
        by_key = by_key.sortWithinPartitions(*KEY_COLUMNS, "token", "kind")
        # Updates of documents that are deleted afterwards need no base.
        columns = StructType(self._form.columns.fields[:-1])
        return by_key.mapInArrow(_Documents(self._form), columns)


@dataclass(frozen=True)
class _Documents:
    """Folds sorted rows of PREPARED into rows of a form: a function for `mapInArrow`."""

    form: TableForm

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        formed = FormedRows(self.form)
        fold = Fold(complete_from="~", tolerant=True, keeps_deleted=self.form.keeps_deleted)
        for batch in fold(batches):
            rows = pa.Table.from_batches([batch])
            made = formed.from_fold(rows.filter(pc.is_null(rows["problem"])))[0]
            yield from self.form.to_files(made).select(self.form.stored.names[:-1]).to_batches()


DOUBLED = "doubled"
"""The difference of a document, or an event, that has several rows."""
DIFFERENCES = "namespace string, key string, difference string, fields array<string>"
_DIFFERENCES = pa.schema(
    [
        *((name, pa.string()) for name in ("namespace", "key", "difference")),
        ("fields", pa.list_(pa.string())),
    ]
)


def verify(spark: SparkSession, target: str, **options: str) -> DataFrame:
    """Return the differences between the table at `target` and the collections.

    The options are those of the source that the table was made with (uri, database, collection, and
    snapshotFilters if the table holds a part of the documents).

    Columns: namespace, key, difference ("missing" in the table, "extra" in the table, "different",
    or DOUBLED), and the fields that differ. The order of fields is not compared: an update without
    a post-image does not state where a server has put a new field. Collections outside of the scope
    are not compared, nor are those that the table must read again. Raises StreamError, and
    HistoryLostError if the table is too far behind.
    """
    scope = parse_options(options).scope
    newest = CurrentTable.existing(target)
    through = newest.state.through
    reader = spark.read.format("mergerouter").options(**_raw(options))
    documents = reader.options(mode="snapshot").load().persist(StorageLevel.MEMORY_AND_DISK)
    documents.count()  # all of them are read before the end is chosen
    with closing(RouterClient(parse_options(options))) as client:
        end = after(client.present()).time
    changes = reader.options(
        mode="changes", startAfter=through, endAtOperationTime=f"{end.time},{end.inc}"
    ).load()
    changes = changes.persist(StorageLevel.MEMORY_AND_DISK)
    advance = Advance(newest.state.keys, changes)
    left, right = advance.of_table(newest.versions(spark)), advance.of_documents(documents)
    place = ["namespace", "key"]
    pairs = left.select(*place, F.col("document").alias("table")).join(
        right.select(*place, F.col("document").alias("collection")), place, "full_outer"
    )
    unequal = pairs.where(~F.col("table").eqNullSafe(F.col("collection")))
    unread = unread_after(newest.state.unread, advance.ddl_events, scope.accepts)
    found = unequal.mapInArrow(_Differences(scope, frozenset(unread)), DIFFERENCES)
    return found.union(_doubled(newest.versions(spark, deleted=True)))


def _doubled(rows: DataFrame) -> DataFrame:
    """Return the documents that have several rows, which others must have written."""
    name = F.concat_ws(".", "database", "collection").alias("namespace")
    counted = rows.groupBy(*KEY_COLUMNS).count().where("count > 1")
    return counted.select(name, "key", F.lit(DOUBLED), F.array().cast("array<string>"))


def verify_columns(spark: SparkSession, log: DeltaLog, form: TableForm) -> DataFrame:
    """Return the rows whose columns are not those that the form makes of their BSON.

    Columns: those of `verify`, with "columns" as the difference, and the names of these columns.
    """
    return read_rows(spark, log).mapInArrow(_Columns(form), DIFFERENCES)


@dataclass(frozen=True)
class _Columns:
    """Finds the rows of `verify_columns`: a function for `mapInArrow`."""

    form: TableForm

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        formed = FormedRows(self.form)
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            pair = formed.from_file(rows), formed.from_file(rows, again=True)
            stored, made = map(self.form.to_files, pair)
            unequal = [name for name in made.column_names if stored[name] != made[name]]
            fields: dict[int, list[str]] = {}
            for name in unequal:
                both = zip(stored[name].to_pylist(), made[name].to_pylist(), strict=True)
                for row, (left, right) in enumerate(both):
                    if str(_bare(left)) != str(_bare(right)):
                        fields.setdefault(row, []).append(name)
            keys = rows.select(map(self.form.column, KEY_COLUMNS)).to_pylist()
            found = [(row, *keys[row].values()) for row in fields]
            yield batch_of(
                (
                    (f"{database}.{collection}", key, "columns", fields[row])
                    for row, database, collection, key in found
                ),
                _DIFFERENCES,
            )


def _bare(value: Any) -> Any:
    """Return a value of a column without empty arrays and documents.

    Rows that were written before a column have null there instead.
    """
    if isinstance(value, dict):
        found = {name: _bare(each) for name, each in value.items()}
        return {name: each for name, each in found.items() if each is not None} or None
    return [_bare(each) for each in value] or None if isinstance(value, list) else value


def _raw(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with which every document can be read."""
    forms = ("documentSchema", "unknownFields")
    return {**{n: text for n, text in options.items() if n not in forms}, "documents": "raw"}


@dataclass(frozen=True)
class _Differences:
    """Makes rows of DIFFERENCES of pairs, without those of collections that are not compared."""

    scope: Scope
    unread: frozenset[tuple[str, str]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = map(difference_of, filter(self._is_compared, batch.to_pylist()))
            yield pa.RecordBatch.from_pylist([each for each in found if each], _DIFFERENCES)

    def _is_compared(self, row: Mapping[str, Any]) -> bool:
        database, _, collection = row["namespace"].partition(".")
        return (
            self.scope.accepts(database, collection) and (database, collection) not in self.unread
        )


def difference_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the BSON in `table` differs from that in `collection`, as DIFFERENCES.

    None stands for a document that is not there.
    """
    place = {"namespace": row["namespace"], "key": row["key"]}
    if row["table"] is None:
        return {**place, "difference": "missing", "fields": []}
    if row["collection"] is None:
        return {**place, "difference": "extra", "fields": []}
    table, collection = _by_name(row["table"]), _by_name(row["collection"])
    unequal = {name for name in table | collection if table.get(name) != collection.get(name)}
    fields = sorted(name.decode(errors="replace") for name in unequal)
    return {**place, "difference": "different", "fields": fields} if fields else None


def _by_name(document: bytes) -> dict[bytes, list[Any]]:
    """Return the values of each name of a document, in order, without the order of names."""
    found: dict[bytes, list[Any]] = {}
    for name, value in elements_of(document):
        found.setdefault(name, []).append(_comparable(value))
    return found


def _comparable(value: Slice) -> Any:
    """Return a value without the order of its fields, but with its types."""
    if value.kind == DOCUMENT:
        return _by_name(value.value)
    if value.kind == ARRAY:
        return [_comparable(each) for _, each in elements_of(value.value)]
    return value


# Rows that are not events of the stream.
_MARKS = ("snapshotEnd", "heartbeat")

_BRONZE_DIFFERENCES = "namespace string, token string, operationType string, difference string"
_BRONZE_COLUMNS = ("token", "namespace", "operationType", "snapshot")
_OTHER_STARTS = (*MODE_OPTIONS, "startAtOperationTime", "resumeAfter", "startAfter")


def verify_bronze(
    spark: SparkSession,
    log: DeltaLog,
    options: Mapping[str, str],
    since: Timestamp | None = None,
) -> DataFrame:
    """Return the differences between the rows of a version, up to its offset, and the stream.

    Columns: namespace, token, operationType, and difference: "missing" or DOUBLED in the rows, or
    "extra", which the stream does not have.

    Args:
        options: of the source.
        since: where the comparison begins; None for the first event that the rows should contain.
            It begins after the last change of the scope at least.

    Raises StreamError, and HistoryLostError if the oplogs do not reach back so far.
    """
    named = named_options(options)
    given = {name: text for name, text in named.items() if name not in _OTHER_STARTS}
    at = Offset.read(log.position()["offset"])
    rows = read_rows(spark, log, _BRONZE_COLUMNS)
    first = _first_token(log, rows) if since is None else key_of(AtTime(since))
    if first is not None and at.since is not None:
        first = max(first, key_of(AtTime(at.since)))
    if first is None:
        return spark.createDataFrame([], _BRONZE_DIFFERENCES)
    start = time_in(first)
    given |= {"mode": "changes", "startAtOperationTime": f"{start.time},{start.inc}"}
    match at.position:
        case Token():
            given["endAt"] = at.position.data
        case AtTime(time):
            given["endAtOperationTime"] = f"{time.time},{time.inc}"
    stream = spark.read.format("mergerouter").options(**_raw(given)).load()
    columns = ("token", "namespace", "operationType")
    kept = rows.where(~F.col("operationType").isin(*_MARKS) & ~F.col("snapshot"))
    kept = kept.where(F.col("token") >= first).groupBy(*columns).agg(F.count("*").alias("times"))
    sent = stream.where(F.col("token") >= first).select(*columns, F.lit(1).alias("sent"))
    difference = (
        F.when(F.col("times").isNull(), "missing")
        .when(F.col("sent").isNull(), "extra")
        .when(F.col("times") > 1, DOUBLED)
    )
    pairs = kept.alias("kept").join(sent.alias("sent"), "token", "full_outer")
    both = [
        F.coalesce(F.col(f"kept.{name}"), F.col(f"sent.{name}")).alias(name)
        for name in ("namespace", "operationType")
    ]
    found = pairs.withColumn("difference", difference).where(F.col("difference").isNotNull())
    found = _of_one_version(found.select(both[0], "token", both[1], "difference", "times"))
    return found.drop("times").orderBy("token")


def _of_one_version(found: DataFrame) -> DataFrame:
    """Return differences without those between the two tokens of one event.

    Servers of 6.0 give an event another token in streams that split large events
    (docs/protocol.md#resume-tokens), and rows may be older than the option that splits them. Both
    tokens have the cluster time, the place in a transaction and the collection's UUID.
    """
    token, is_extra = F.col("token"), F.col("difference") == "extra"
    is_missing, is_first_version = F.col("difference") == "missing", token.substr(19, 4) == "2B02"
    event = F.regexp_replace(token, "^(.{18})2B0[24](.*?5A1004.{32})?.*", "$1$2")
    of_event = (event, "namespace", "operationType", is_extra == is_first_version)
    rows = Window.partitionBy(*of_event)
    others = F.when(is_extra, F.count_if(is_missing).over(rows))
    others = others.otherwise(F.count_if(is_extra).over(rows))
    place = F.row_number().over(Window.partitionBy(*of_event, "difference").orderBy("token"))
    known = (F.col("difference") != DOUBLED) & (place <= others)
    told = F.when(~known, F.col("difference")).when(F.col("times") > 1, DOUBLED)
    return found.withColumn("difference", told).where(F.col("difference").isNotNull())


def snapshot_ends(log: DeltaLog) -> list[Mapping[str, Any]]:
    """Return the events of the ends of snapshots in a table of all rows."""
    found = log.scan(["event"], pc.field("operationType") == SNAPSHOT_END)
    return [bson.decode(event) for rows in found for event in rows["event"].to_pylist()]


def _first_token(log: DeltaLog, rows: DataFrame) -> str | None:
    """Return where the rows' events begin: after the first snapshot, or with the first event."""
    ends = sorted(snapshot_ends(log), key=lambda event: str(event["_id"]["_data"]))
    snapshots = [event for event in ends if not event.get("requested")]
    events = rows.where(~F.col("snapshot") & ~F.col("operationType").isin(*_MARKS))
    first: str | None = events.agg(F.min("token")).collect()[0][0]
    if not snapshots:
        return first
    mark: Timestamp = snapshots[0]["clusterTime"]
    behind = key_of(after(mark))
    return behind if first is None else min(first, behind)
