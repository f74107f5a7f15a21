"""Spark's plan for Debezium's messages."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.debezium.message_batches import ORDERED, Messages, WithTransactions
from spark_sink.debezium.options import MessageOptions
from spark_sink.events.heartbeats import HEARTBEAT

MESSAGES = "topic string, key string, value string"
"""The columns, as Spark's Kafka sink expects them."""


def to_debezium(rows: DataFrame, prefix: str, **options: Any) -> DataFrame:
    """Return Debezium's messages for changes, for a snapshot's documents, and for heartbeats.

    The columns are topic, key and value. The messages of a document are in the order of the rows;
    with `transactions` all messages of a batch are in the stream's order, in one partition.

    Args:
        rows: of this package's source: a batch or a stream.
        prefix: Debezium's topic.prefix, which also names the source.
        options: the other fields of `MessageOptions`.

    Raises OptionError for a version or a naming strategy that is unknown, and for schemas of 2.6.
    """
    given = MessageOptions(prefix, **options)
    wanted = rows.where(F.col("op").isNotNull() | (F.col("operationType") == HEARTBEAT))
    if not given.transactions:
        return wanted.select("event").mapInArrow(Messages(given), MESSAGES)
    ordered = wanted.select("event", "token").mapInArrow(Messages(given, ordered=True), ORDERED)
    return ordered.repartition(1).mapInArrow(WithTransactions(given), MESSAGES)
