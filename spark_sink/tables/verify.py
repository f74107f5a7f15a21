"""Compares a current table with its collections.

The collections keep changing, so both sides are advanced to one later position of the stream: the
documents are read as a snapshot, and then the events up to that position are applied to the table's
rows and to the snapshot's. What differs then differed before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import bson
import pyarrow as pa
from bson import json_util
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.events.positions import after
from spark_sink.events.slices import CODEC
from spark_sink.options.scope import Scope
from spark_sink.options.stream_options import parse_options
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.advance import Advance
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.unread import unread_after

DIFFERENCES = "namespace string, key string, difference string, fields array<string>"


def verify(spark: SparkSession, target: str, **options: str) -> DataFrame:
    """Return the differences between the table at `target` and the collections.

    The options are those of the source that the table was made with (uri, database, collection, and
    snapshotFilters if the table holds a part of the documents).

    Columns: namespace, key, difference ("missing" in the table, "extra" in the table, or
    "different"), and the fields that differ. The order of fields is not compared: an update without
    a post-image does not state where a server has put a new field. Collections outside of the scope
    are not compared, nor are those that the table must read again. Raises StreamError, and
    HistoryLostError if the table is too far behind.
    """
    scope = parse_options(options).scope
    newest = CurrentTable.existing(target)
    through = newest.state.through
    reader = spark.read.format("mergerouter").options(**options)
    documents = reader.options(mode="snapshot").load().persist(StorageLevel.MEMORY_AND_DISK)
    documents.count()  # all of them are read before the end is chosen
    end = _present(options)
    changes = reader.options(
        mode="changes", startAfter=through, endAtOperationTime=f"{end[0]},{end[1]}"
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
    return unequal.mapInArrow(_Differences(scope, frozenset(unread)), DIFFERENCES)


def _present(options: Mapping[str, str]) -> tuple[int, int]:
    client = RouterClient(parse_options(options))
    try:
        time = after(client.present()).time
    finally:
        client.close()
    return time.time, time.inc


@dataclass(frozen=True)
class _Differences:
    """Makes rows of DIFFERENCES of pairs, without those of collections that are not compared."""

    scope: Scope
    unread: frozenset[tuple[str, str]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = ("namespace", "key", "difference", "fields")
        types = (pa.string(), pa.string(), pa.string(), pa.list_(pa.string()))
        for batch in batches:
            rows = filter(self._is_compared, batch.to_pylist())
            found = [each for row in rows if (each := difference_of(row)) is not None]
            columns = [
                pa.array([row[name] for row in found], type=kind)
                for name, kind in zip(names, types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, names=list(names))

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
    table, collection = _comparable(row["table"]), _comparable(row["collection"])
    fields = sorted(name for name in table | collection if table.get(name) != collection.get(name))
    return {**place, "difference": "different", "fields": fields} if fields else None


def _comparable(document: bytes) -> dict[str, str]:
    """Return each field as text that shows its types, but not the order of its fields."""
    text = json_util.dumps(
        bson.decode(document, CODEC),
        json_options=json_util.CANONICAL_JSON_OPTIONS,
    )
    return {name: json.dumps(value, sort_keys=True) for name, value in json.loads(text).items()}
