"""Compares a current table with its collections, and says what differs.

The collections go on changing, so both sides are brought to one later point of the stream: the
documents are read as a snapshot, and then the events up to that point are applied to the table's
rows and to the snapshot's. What differs then was different before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import bson
import pyarrow as pa
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.options import parse_options
from spark_sink.router_client import RouterClient
from spark_sink.snapshot.plan import after
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.definitions import DEFINITIONS, definition_of
from spark_sink.tables.fold import Fold

_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, unicode_decode_error_handler="replace"
)
DIFFERENCES = "namespace string, key string, difference string, fields array<string>"


def verify(spark: SparkSession, target: str, **options: str) -> DataFrame:
    """The differences between the table at `target` and the collections; no rows: they are equal.

    options: those of the source that the table was made with (uri, database, collection, and
    snapshotFilters where the table holds a part of the documents).

    Columns: namespace, key, difference ("missing" in the table, "extra" in the table, or
    "different"), and the fields that differ. Fields are compared without their order: an update
    without a post-image does not tell where a server has put a new field.
    Raises StreamError, and HistoryLostError if the table has fallen too far behind.
    """
    newest = CurrentTable.existing(spark, target)
    through = newest.version.through
    reader = spark.read.format("mergerouter").options(**options)
    documents = reader.options(mode="snapshot").load().persist(StorageLevel.MEMORY_AND_DISK)
    documents.count()  # all of them are read before the end is chosen
    end = _present(options)
    changes = reader.options(
        mode="changes", startAfter=through, endAtOperationTime=f"{end[0]},{end[1]}"
    ).load()
    changes = changes.persist(StorageLevel.MEMORY_AND_DISK)
    found = changes.where(F.col("operationType").isin(*DEFINITIONS)).select("event").collect()
    definitions = sorted(definition_of(bytes(row.event)) for row in found)
    events = newest.prepared(changes.where(F.col("op").isNotNull()), definitions)
    rows = newest.prepared_rows(newest.read(), definitions)
    read = newest.prepared(documents, definitions)
    # Updates of documents that are deleted afterwards need no base on either side.
    fold = Fold(complete_from="~")
    left = newest.folded(rows.union(events), fold, newest.version.buckets)
    right = newest.folded(read.union(events), fold, newest.version.buckets)
    place = ["namespace", "key"]
    pairs = left.select(*place, F.col("document").alias("table")).join(
        right.select(*place, F.col("document").alias("collection")), place, "full_outer"
    )
    unequal = pairs.where(~F.col("table").eqNullSafe(F.col("collection")))
    return unequal.mapInArrow(_differences, DIFFERENCES)


def _present(options: Mapping[str, str]) -> tuple[int, int]:
    client = RouterClient(parse_options(options))
    try:
        time = after(client.present()).time
    finally:
        client.close()
    return time.time, time.inc


def _differences(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = ("namespace", "key", "difference", "fields")
    types = (pa.string(), pa.string(), pa.string(), pa.list_(pa.string()))
    for batch in batches:
        found = [each for row in batch.to_pylist() if (each := _difference(row)) is not None]
        columns = [
            pa.array([row[name] for row in found], type=kind)
            for name, kind in zip(names, types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=list(names))


def _difference(row: Mapping[str, Any]) -> dict[str, Any] | None:
    place = {"namespace": row["namespace"], "key": row["key"]}
    if row["table"] is None:
        return {**place, "difference": "missing", "fields": []}
    if row["collection"] is None:
        return {**place, "difference": "extra", "fields": []}
    table, collection = _comparable(row["table"]), _comparable(row["collection"])
    fields = sorted(name for name in table | collection if table.get(name) != collection.get(name))
    return {**place, "difference": "different", "fields": fields} if fields else None


def _comparable(document: bytes) -> dict[str, str]:
    """Each field as text that tells types apart, and not the order of fields."""
    text = json_util.dumps(
        bson.decode(document, _CODEC),
        json_options=json_util.CANONICAL_JSON_OPTIONS,
    )
    return {name: json.dumps(value, sort_keys=True) for name, value in json.loads(text).items()}
