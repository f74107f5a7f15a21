"""Compares the rows of tables with the stream, while the oplogs have its events.

The events are read again with the job's options, and the code that made the rows of the tables
makes them again. Only the number of the batch and the shard of a row are not compared, because they
depend on how the batch was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from shard_client.bson.resume_token import cluster_time_of
from spark_sink.debezium.message_batches import MESSAGE_ROWS, Messages, table_options
from spark_sink.events.positions import AtTime, Position, Token
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
_OF_IMAGES = {"fullDocument", "fullDocumentBeforeChange", "event", "value"}
"""The columns with such documents."""
# The times in a message, one of which is the time at which it was made.
_CLOCK = r'"[^"]*ts_(ms|us|ns)": ?\d+'


def events_of(
    spark: SparkSession, options: Mapping[str, str], first: str, end: Position
) -> DataFrame:
    """Return the events from a token up to a position, as rows of the source with _CERTAIN.

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
        certain = (kind != "update") | _has_document("fullDocument")
    if parsed.full_document_before_change is not None:
        has_image = _has_document("fullDocumentBeforeChange")
        certain = certain & (kind.isin("insert", "read") | has_image)
    rows = rows.withColumn(_CERTAIN, F.coalesce(certain, F.lit(True)))
    return rows.where(F.col("token") >= first)


def _has_document(name: str) -> Column:
    """Return whether a column has a document: not null, nor an event's null as JSON or BSON."""
    return ~F.coalesce(F.col(name).cast("string"), F.lit("")).isin("", "null")


def bronze_differences(stored: DataFrame, events: DataFrame) -> DataFrame:
    """Return how rows of bronze differ from the events.

    Columns: token, namespace, operationType; the difference, which is "missing" or DOUBLED in the
    rows, "extra" for a row that the stream lacks, or "different"; and the `fields` that differ.
    """
    shown = ["namespace", "operationType"]
    return _differences(stored, _dated(events), ["token"], shown).orderBy("token")


def message_differences(
    stored: DataFrame, events: DataFrame, options: Mapping[str, str]
) -> DataFrame:
    """Return how rows of a table of messages differ from the messages of the events.

    `options` are those of the messages. Columns: token, index, topic, and those of
    `bronze_differences`.
    """
    schema = StructType([f for f in stored.schema.fields if f.name in MESSAGE_ROWS.names])
    sent = _dated(events.mapInArrow(partial(_made, dict(options), schema), schema))
    without_clock = F.regexp_replace("value", _CLOCK, "")
    stored, sent = (rows.withColumn("value", without_clock) for rows in (stored, sent))
    sent = sent.join(events.select("token", _CERTAIN), "token")
    return _differences(stored, sent, ["token", "index"], ["topic"])


def transaction_differences(stored: DataFrame, events: DataFrame) -> DataFrame:
    """Return how the rows of a table of transactions differ from those of the events.

    A transaction may have several rows. Columns: id, and those of `bronze_differences`.
    """
    schema = StructType([f for f in stored.schema.fields if f.name in TRANSACTION_COLUMNS.names])
    counted = events.select(*COUNT_COLUMNS).mapInArrow(_counted, schema)
    stored, counted = map(_whole_transactions, (stored, counted))
    return _differences(stored, counted.withColumn(_CERTAIN, F.lit(True)), ["id"], [])


def _dated(rows: DataFrame) -> DataFrame:
    """Return rows with the date of their events, as a job's table has it."""
    day = F.to_date(F.to_utc_timestamp("clusterTime", F.current_timezone()))
    return rows.withColumn(DATE, day)


def _made(
    options: Mapping[str, str], schema: StructType, batches: Iterable[pa.RecordBatch]
) -> MadeRows:
    """Make messages of rows of the source: a function for `mapInArrow`."""
    messages, columns = Messages(table_options(options)), arrow_schema(schema)
    for rows in chain.from_iterable(map(messages.of_rows, batches)):
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
    stored: DataFrame, sent: DataFrame, keys: Sequence[str], shown: Sequence[str]
) -> DataFrame:
    """Return how rows with equal `keys` differ in the columns that both sides have.

    Columns: `keys` and `shown`, the difference, and the fields.
    """
    names = [name for name in sent.columns if name in stored.columns and name != "shard"]
    stored, sent = _comparable(stored), _comparable(sent)
    times, first = F.count("*").alias("times"), F.first(F.struct(*names)).alias("stored")
    of_stream = sent.select(*keys, F.struct(*names).alias("sent"), _CERTAIN)
    pairs = stored.groupBy(*keys).agg(times, first).join(of_stream, list(keys), "full_outer")
    differing = []
    for name in names:
        is_other = ~F.col(f"stored.{name}").eqNullSafe(F.col(f"sent.{name}"))
        if name in _OF_IMAGES:
            is_other = is_other & F.col(_CERTAIN)
        differing.append(F.when(is_other, name))
    fields = F.array_compact(F.array(*differing))
    difference = F.when(F.col("stored").isNull(), "missing").when(F.col("sent").isNull(), "extra")
    difference = difference.when(F.col("times") > 1, DOUBLED)
    difference = difference.when(F.size(fields) > 0, "different").alias("difference")
    others = (F.coalesce(f"sent.{name}", f"stored.{name}").alias(name) for name in shown)
    rows = pairs.select(*keys, *others, difference, fields.alias("fields"))
    of_pair = F.when(F.col("difference") == "different", F.col("fields")).otherwise(F.array())
    return rows.where(F.col("difference").isNotNull()).withColumn("fields", of_pair)


def _comparable(rows: DataFrame) -> DataFrame:
    """Return rows with maps as JSON, because Spark does not compare them."""
    for field in rows.schema.fields:
        if "map<" in field.dataType.simpleString():
            rows = rows.withColumn(field.name, F.to_json(F.struct(field.name)))
    return rows
