"""Spark's plan for Debezium's messages."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.debezium.message_batches import ORDERED, Messages
from spark_sink.debezium.options import HEARTBEAT_PREFIX, VERSIONS, MessageOptions, Naming
from spark_sink.debezium.transactions import WithTransactions
from spark_sink.errors import OptionError
from spark_sink.events.heartbeats import HEARTBEAT

MESSAGES = "topic string, key string, value string"
"""The columns, as Spark's Kafka sink expects them."""


def to_debezium(
    rows: DataFrame,
    prefix: str,
    *,
    tombstones: bool = True,
    transactions: bool = False,
    version: str = "3.6",
    delimiter: str = ".",
    naming: Naming = "default",
    transaction_topic: str = "transaction",
    heartbeat_prefix: str = HEARTBEAT_PREFIX,
    heartbeat_topic: str | None = None,
    schemas: bool = False,
) -> DataFrame:
    """Return Debezium's messages for changes, for a snapshot's documents, and for heartbeats.

    The columns are topic, key and value. The messages of a document are in the order of the rows;
    with `transactions` all messages of a batch are in the stream's order, in one partition.

    Args:
        rows: of this package's source: a batch or a stream.
        prefix: Debezium's topic.prefix, which also names the source.
        tombstones: Debezium's tombstones.on.delete.
        transactions: Debezium's provide.transaction.metadata: the order of events within their
            transaction, and messages for its BEGIN and END.
        version: of Debezium, "3.6" or "2.6".
        delimiter: Debezium's topic.delimiter.
        naming: "unicode" for Debezium's DefaultUnicodeTopicNamingStrategy.
        transaction_topic: Debezium's topic.transaction.
        heartbeat_prefix: Debezium's topic.heartbeat.prefix.
        heartbeat_topic: Debezium's topic.heartbeat.name.
        schemas: schemas.enable of Kafka Connect's JSON converter: keys and values have schemas.

    Raises OptionError for a version or a naming strategy that is unknown, and for schemas of 2.6.
    """
    if version not in VERSIONS:
        raise OptionError(f"version must be one of {', '.join(VERSIONS)}, not {version!r}")
    if naming not in ("default", "unicode"):
        raise OptionError(f"naming must be default or unicode, not {naming!r}")
    if schemas and version != "3.6":
        raise OptionError(f"schemas are those of version 3.6, not of {version}: leave one out")
    options = MessageOptions(
        prefix, tombstones, transactions, version, delimiter, naming, transaction_topic,
        heartbeat_prefix, heartbeat_topic, schemas,
    )  # fmt: skip
    wanted = rows.where(F.col("op").isNotNull() | (F.col("operationType") == HEARTBEAT))
    if not transactions:
        return wanted.select("event").mapInArrow(Messages(options), MESSAGES)
    ordered = wanted.select("event", "token").mapInArrow(Messages(options, ordered=True), ORDERED)
    return ordered.repartition(1).mapInArrow(WithTransactions(options), MESSAGES)
