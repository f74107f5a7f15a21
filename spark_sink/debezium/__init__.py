"""Rows of the source as the messages that Debezium's MongoDB connector sends to Kafka."""

from spark_sink.debezium.message_batches import MESSAGES, to_debezium

__all__ = ["MESSAGES", "to_debezium"]
