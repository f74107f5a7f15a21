"""A table of the transactions in batches of rows: what Debezium's transaction metadata counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.event_slices import fields_of
from spark_sink.event_values import transaction_name

_NAMED = "id string, token string, clusterTime timestamp, namespace string"
_BINARY_HEAD = 5  # the bytes before those of a binary value: its size, and its subtype


def transactions_in(rows: DataFrame) -> DataFrame:
    """Return a row for each transaction with changes of documents in a batch.

    rows: of this package's source, not of a stream.

    Columns: id, as `to_debezium` names the transaction; event_count; data_collections, a map from
    the collection's full name to the number of its events; clusterTime, of its last event;
    first_token and last_token. A transaction whose events lie in several batches has a row in each.
    """
    within = rows.where(F.col("txnNumber").isNotNull() & F.col("op").isNotNull())
    events = within.select("event", "token", "clusterTime", "namespace")
    by_collection = (
        events.mapInArrow(_named, _NAMED)
        .groupBy("id", "namespace")
        .agg(
            F.count(F.lit(1)).alias("events"),
            F.max("clusterTime").alias("clusterTime"),
            F.min("token").alias("first"),
            F.max("token").alias("last"),
        )
    )
    collections = F.collect_list(F.struct("namespace", "events"))
    return by_collection.groupBy("id").agg(
        F.sum("events").alias("event_count"),
        F.map_from_entries(F.array_sort(collections)).alias("data_collections"),
        F.max("clusterTime").alias("clusterTime"),
        F.min("first").alias("first_token"),
        F.max("last").alias("last_token"),
    )


def _named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows with the names of their transactions instead of their events."""
    for batch in batches:
        events, *others = batch.columns
        names = pa.array(map(_name, events.to_pylist()), pa.string())
        yield pa.RecordBatch.from_arrays([names, *others], names=["id", *batch.schema.names[1:]])


def _name(event: bytes) -> str:
    fields = fields_of(event, (b"lsid", b"txnNumber"))
    session = fields_of(fields[b"lsid"].value)[b"id"].value[_BINARY_HEAD:]
    return transaction_name(session, fields[b"txnNumber"].whole_number())
