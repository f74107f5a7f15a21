"""Compares the rows of tables with the stream, while the oplogs have its events.

The events are read again with the job's options, and the code that made the rows of the tables
makes them again. Only the number of the batch and the shard of a row are not compared, because they
depend on how the batch was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, StringType, StructType

from shard_client.bson.resume_token import cluster_time_of
from spark_sink.debezium.message_batches import MESSAGE_ROWS, Messages, table_options
from spark_sink.events.positions import AtTime, Position, Token
from spark_sink.events.slices import fields_of
from spark_sink.jobs.job_tables import DATE, TRANSACTION_COLUMNS
from spark_sink.jobs.task_writer import COUNT_COLUMNS, Transactions
from spark_sink.options.snapshot_options import MODE_OPTIONS
from spark_sink.options.stream_options import named_options, parse_options
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.executors import MadeRows
from spark_sink.verification.differences import DOUBLED

MARKS = "^82.{16}2B..29"
"""The tokens of rows that are no events of the stream: high water marks."""
_OTHER_STARTS = (*MODE_OPTIONS, "startAtOperationTime", "resumeAfter", "startAfter")
_LOOKED_UP = "updateLookup"
# The column that says whether the stream still has the documents that a table may have of an event.
# Servers keep images for a shorter time than events; a looked-up document is as new as the read.
_CERTAIN = "certain"
_IMAGES = ("fullDocument", "fullDocumentBeforeChange")
# The times in a message, one of which is the time at which it was made.
_CLOCK = r'"[^"]*ts_(ms|us|ns)": ?\d+'


@dataclass(frozen=True)
class Events:
    """The events of the stream with which tables are compared.

    Args:
        rows: of the source, with _CERTAIN.
        first: a token, at or below that of the first event.
        whole: the token above which all columns are compared; the job had other options before it.
    """

    rows: DataFrame
    first: str
    whole: str


def events_of(
    spark: SparkSession, options: Mapping[str, str], first: str, whole: str, end: Position
) -> Events:
    """Return the events from a token up to a position.

    `options` are those of the source. Raises StreamError, and HistoryLostError if the oplogs do not
    reach back so far.
    """
    start = cluster_time_of(first)
    given = {n: text for n, text in named_options(options).items() if n not in _OTHER_STARTS}
    given |= {"mode": "changes", "startAtOperationTime": f"{start.time},{start.inc}"}
    match end:
        case Token():
            given["endAt"] = end.data
        case AtTime(time):
            given["endAtOperationTime"] = f"{time.time},{time.inc}"
    parsed = parse_options(given)
    with closing(RouterClient(parsed)) as client:
        client.require_history(AtTime(start))
    rows = spark.read.format("mergerouter").options(**given).load()
    kind, certain = F.col("operationType"), F.lit(True)
    if parsed.full_document == _LOOKED_UP:
        certain = kind != "update"
    elif parsed.full_document is not None:
        certain = (kind != "update") | F.col(_IMAGES[0]).isNotNull()
    if parsed.full_document_before_change is not None:
        certain = certain & (kind.isin("insert", "read") | F.col(_IMAGES[1]).isNotNull())
    rows = rows.withColumn(_CERTAIN, F.coalesce(certain, F.lit(True)))
    return Events(rows.where(F.col("token") >= first), first, whole)


def bronze_differences(stored: DataFrame, events: Events) -> DataFrame:
    """Return how rows of bronze differ from the events.

    Columns: token, namespace, operationType; the difference, which is "missing" or DOUBLED in the
    rows, "extra" for a row that the stream lacks, or "different"; and the `fields` that differ.
    """
    stored = _from_stream(stored, events.first)
    shown = ["token", "namespace", "operationType"]
    differing = _differences(stored, _dated(events.rows), ["token"], shown, events.whole)
    return _of_one_version(differing).orderBy("token")


def message_differences(stored: DataFrame, events: Events, options: Mapping[str, str]) -> DataFrame:
    """Return how rows of a table of messages differ from the messages of the events.

    `options` are those of the messages. Columns: token, index, topic, and those of
    `bronze_differences`.
    """
    rows = [field for field in stored.schema.fields if field.name in MESSAGE_ROWS.names]
    schema = StructType(rows).add(_CERTAIN, "boolean")
    expected = events.rows.mapInArrow(partial(_made, dict(options), schema), schema)
    without_clock = F.regexp_replace("value", _CLOCK, "")
    stored, expected = (
        _from_stream(rows, events.first).withColumn("value", without_clock)
        for rows in (stored, _dated(expected))
    )
    shown = ["token", "index", "topic"]
    return _differences(stored, expected, ["token", "index"], shown, events.whole).drop("times")


def transaction_differences(stored: DataFrame, events: Events) -> DataFrame:
    """Return how the rows of a table of transactions differ from those of the events.

    A transaction may have several rows. Columns: id, and those of `bronze_differences`.
    """
    schema = StructType(
        [field for field in stored.schema.fields if field.name in TRANSACTION_COLUMNS.names]
    )
    counted = events.rows.select(*COUNT_COLUMNS).mapInArrow(_counted, schema)
    stored, counted = (
        _whole_transactions(rows).where(F.col("token") >= events.first)
        for rows in (stored, counted)
    )
    return _differences(stored, counted, ["id"], ["id"], events.whole).drop("times")


def _from_stream(rows: DataFrame, first: str) -> DataFrame:
    """Return the rows of events of the stream from a token on."""
    return rows.where(~F.col("token").rlike(MARKS) & (F.col("token") >= first))


def _dated(rows: DataFrame) -> DataFrame:
    """Return rows with the date of their events, as a job's table has it."""
    day = F.to_date(F.to_utc_timestamp("clusterTime", F.current_timezone()))
    return rows.withColumn(DATE, day)


def _made(
    options: Mapping[str, str], schema: StructType, batches: Iterable[pa.RecordBatch]
) -> MadeRows:
    """Make messages of rows of the source, with _CERTAIN: a function for `mapInArrow`."""
    messages, columns = Messages(table_options(options)), arrow_schema(schema)
    for batch in batches:
        pairs = zip(batch["token"].to_pylist(), batch[_CERTAIN].to_pylist(), strict=True)
        certain = dict(pairs)
        for rows in messages.of_rows(batch):
            known = pa.array(map(certain.get, rows["token"].to_pylist()), pa.bool_())
            rows = rows.append_column(_CERTAIN, known)
            yield from rows.select(columns.names).cast(columns).to_batches()


def _counted(batches: Iterable[pa.RecordBatch]) -> MadeRows:
    """Count the transactions of rows of the source: a function for `mapInArrow`."""
    counted = Transactions()
    for batch in batches:
        counted.count(batch)
    yield from counted.rows().to_batches()


def _whole_transactions(rows: DataFrame) -> DataFrame:
    """Return a row for each transaction, with its first token as `token`."""
    names = rows.select("id", F.explode("data_collections").alias("name", "number"))
    names = names.groupBy("id", "name").agg(F.sum("number").alias("number"))
    pairs = F.sort_array(F.collect_list(F.struct("name", "number"))).alias("data_collections")
    whole = rows.groupBy("id").agg(
        F.sum("event_count").alias("event_count"),
        F.max("clusterTime").alias("clusterTime"),
        F.min("first_token").alias("token"),
        F.max("last_token").alias("last_token"),
    )
    return whole.join(names.groupBy("id").agg(pairs), "id", "left")


def _differences(
    stored: DataFrame, sent: DataFrame, keys: Sequence[str], shown: Sequence[str], whole: str
) -> DataFrame:
    """Return how rows with equal `keys` differ in the columns that both sides have.

    Columns: `shown`, difference, fields, and `times`, how often the table has a row.
    """
    names = [name for name in sent.columns if name in stored.columns and name != "shard"]
    stored, sent = _comparable(stored), _comparable(sent)
    of_table = stored.groupBy(*keys).agg(
        F.count("*").alias("times"), F.first(F.struct(*names)).alias("stored")
    )
    certain = [_CERTAIN] if _CERTAIN in sent.columns else []
    of_stream = sent.select(*keys, F.struct(*names).alias("sent"), *certain)
    pairs = of_table.join(of_stream, list(keys), "full_outer").drop(*keys)
    unequal = pairs.where(~F.col("stored").eqNullSafe(F.col("sent")) | (F.col("times") > 1))
    kinds = [field for field in sent.schema.fields if field.name in shown]
    schema = StructType(kinds).add("difference", "string")
    schema = schema.add("fields", ArrayType(StringType())).add("times", "long")
    return unequal.mapInArrow(partial(_described, shown, schema, whole), schema)


def _comparable(rows: DataFrame) -> DataFrame:
    """Return rows with maps as JSON, because Spark does not compare them."""
    for field in rows.schema.fields:
        if "map<" in field.dataType.simpleString():
            rows = rows.withColumn(field.name, F.to_json(F.struct(field.name)))
    return rows


def _described(
    shown: Sequence[str], schema: StructType, whole: str, batches: Iterable[pa.RecordBatch]
) -> MadeRows:
    """Say how pairs of rows differ: a function for `mapInArrow`."""
    for batch in batches:
        pairs = ((row, _difference(row, whole)) for row in batch.to_pylist())
        differing = [
            {
                **{name: (pair["sent"] or pair["stored"])[name] for name in shown},
                "difference": difference[0],
                "fields": difference[1],
                "times": pair["times"],
            }
            for pair, difference in pairs
            if difference is not None
        ]
        yield pa.RecordBatch.from_pylist(differing, arrow_schema(schema))


def _difference(pair: Mapping[str, Any], whole: str) -> tuple[str, list[str]] | None:
    """Return how the rows of a pair differ, and in which fields; None if they do not."""
    stored, sent = pair["stored"], pair["sent"]
    if stored is None:
        return "missing", []
    if sent is None:
        return "extra", []
    if pair["times"] > 1:
        return DOUBLED, []
    fields = _differing_columns(stored, sent, certain=pair.get(_CERTAIN) is not False)
    return ("different", fields) if fields and sent["token"] > whole else None


def _differing_columns(
    stored: Mapping[str, Any], sent: Mapping[str, Any], *, certain: bool
) -> list[str]:
    """Return the names of the columns that differ; images count only if `certain`."""
    names = [name for name in sent if stored[name] != sent[name]]
    if certain:
        return names
    ignored = {*_IMAGES, "value"}
    if "event" in names and stored["event"] is not None:
        events = [fields_of(row["event"]) for row in (stored, sent)]
        rest = [{k: v for k, v in fields.items() if k.decode() not in _IMAGES} for fields in events]
        ignored |= {"event"} if rest[0] == rest[1] else set()
    return [name for name in names if name not in ignored]


def _of_one_version(differing: DataFrame) -> DataFrame:
    """Return differences without those that come from two tokens of one event.

    Servers of 6.0 give an event another token in streams that split large events
    (docs/protocol.md#resume-tokens), and rows may be older than the option that splits them. Both
    tokens have the same cluster time, place in a transaction, and UUID of the collection.
    """
    token, is_extra = F.col("token"), F.col("difference") == "extra"
    is_missing, is_first_version = F.col("difference") == "missing", token.substr(19, 4) == "2B02"
    event = F.regexp_replace(token, "^(.{18})2B0[24](.*?5A1004.{32})?.*", "$1$2")
    of_event = (event, "namespace", "operationType", is_extra == is_first_version)
    rows = Window.partitionBy(*of_event)
    others = F.when(is_extra, F.count_if(is_missing).over(rows))
    others = others.otherwise(F.count_if(is_extra).over(rows))
    place = F.row_number().over(Window.partitionBy(*of_event, "difference").orderBy("token"))
    known = (is_extra | is_missing) & (place <= others)
    difference = F.when(~known, F.col("difference")).when(F.col("times") > 1, DOUBLED)
    differing = differing.withColumn("difference", difference).drop("times")
    return differing.where(F.col("difference").isNotNull())
