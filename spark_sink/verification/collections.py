"""Compares a current table with its collections, and its columns with the documents in them.

The collections keep changing, so both sides are advanced to one later position of the stream: the
documents are read as a snapshot, and then the events up to that position are applied to the table's
rows and to the snapshot's. A difference between the results existed before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from shard_client.bson.values import ARRAY, DOCUMENT
from spark_sink.events.positions import AtTime, after, key_of
from spark_sink.events.slices import Slice, elements_of
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import named_options, parse_options
from spark_sink.source.offsets import Offset
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.current_table import Advance, CurrentTable
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.key_ranges import KEY_COLUMNS
from spark_sink.tables.prepare import batch_of
from spark_sink.tables.table_form import FormedRows, TableForm
from spark_sink.tables.table_state import Namespace, unread_after
from spark_sink.tables.tasks import MadeRows, read_rows

DOUBLED = "doubled"
"""The difference of a document, or an event, that has several rows."""
DIFFERENCES = "namespace string, key string, difference string, fields array<string>"
_DIFFERENCES = pa.schema(
    [
        *((name, pa.string()) for name in ("namespace", "key", "difference")),
        ("fields", pa.list_(pa.string())),
    ]
)


_DOCUMENT_OPTIONS = (
    "database",
    "collection",
    "database.include.list",
    "database.exclude.list",
    "collection.include.list",
    "collection.exclude.list",
    "filters.match.mode",
    "snapshotFilters",
    "field.exclude.list",
    "field.masks",
    "field.masks.salt.file",
    "field.renames",
)


def document_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return those options of the source that select the documents and fields of a table."""
    given = named_options(options)
    return {name: text for name, text in given.items() if name in _DOCUMENT_OPTIONS}


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
    start = _start(newest)
    reader = spark.read.format("mergerouter").options(**_raw(options))
    documents = reader.options(mode="snapshot").load().persist(StorageLevel.MEMORY_AND_DISK)
    documents.count()  # all of them are read before the end is chosen
    with closing(RouterClient(parse_options(options))) as client:
        end = after(client.present()).time
    changes = reader.options(
        mode="changes", endAtOperationTime=f"{end.time},{end.inc}", **start
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
    found = unequal.mapInArrow(partial(_differing, scope, set(unread)), DIFFERENCES)
    return found.union(_doubled(newest.versions(spark, deleted=True)))


def _start(table: CurrentTable) -> dict[str, str]:
    """Return the options of the changes that a table lacks.

    They begin where its job is, since oplogs may have lost the last event of idle collections, or
    a seek has left events out. Before a snapshot has ended, the table lacks what follows its last
    event.
    """
    through, batch = table.state.through, table.batch
    if batch is not None and batch.offset:
        at = Offset.read(batch.offset)
        is_whole = at.running is None and at.sought is None
        if is_whole and isinstance(at.position, AtTime) and key_of(at.position) > through:
            return {"startAtOperationTime": f"{at.position.time.time},{at.position.time.inc}"}
    return {"startAfter": through}


def _doubled(rows: DataFrame) -> DataFrame:
    """Return the documents that have several rows: another writer made the further ones."""
    name = F.concat_ws(".", "database", "collection").alias("namespace")
    counted = rows.groupBy(*KEY_COLUMNS).count().where("count > 1")
    return counted.select(name, "key", F.lit(DOUBLED), F.array().cast("array<string>"))


def verify_columns(spark: SparkSession, log: DeltaLog, form: TableForm) -> DataFrame:
    """Return the rows whose columns are not those that the form makes of their BSON.

    Columns: those of `verify`, with "columns" as the difference, and the names of these columns.
    """
    return read_rows(spark, log, mapped=(partial(_unlike_columns, form), DIFFERENCES))


def _unlike_columns(form: TableForm, batches: Iterable[pa.RecordBatch]) -> MadeRows:
    """Find the rows of `verify_columns`: a function for `mapInArrow`."""
    formed = FormedRows(form)
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        pair = formed.from_file(rows), formed.from_file(rows, again=True)
        stored, made = map(form.to_files, pair)
        fields: dict[int, list[str]] = {}
        for name in made.column_names:
            if stored[name] == made[name]:
                continue
            both = zip(stored[name].to_pylist(), made[name].to_pylist(), strict=True)
            for row, (left, right) in enumerate(both):
                if str(_bare(left)) != str(_bare(right)):
                    fields.setdefault(row, []).append(name)
        keys = rows.select(map(form.column, KEY_COLUMNS)).to_pylist()
        found = ((*keys[row].values(), names) for row, names in fields.items())
        yield batch_of(
            ((f"{database}.{name}", key, "columns", names) for database, name, key, names in found),
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


def _differing(
    scope: Scope, unread: Collection[Namespace], batches: Iterable[pa.RecordBatch]
) -> MadeRows:
    """Make rows of DIFFERENCES of pairs, without those of collections that are not compared."""
    for batch in batches:
        found = []
        for row in batch.to_pylist():
            database, _, collection = row["namespace"].partition(".")
            if scope.accepts(database, collection) and (database, collection) not in unread:
                found.append(difference_of(row))
        yield pa.RecordBatch.from_pylist([each for each in found if each], _DIFFERENCES)


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
