"""The transactions in Debezium's messages: BEGIN and END, and the order of events within them.

Debezium counts while it reads the merged stream: a transaction begins with its first event and ends
with the first event that does not belong to it, whose time END has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_sink.debezium.message_batches import batch_of
from spark_sink.debezium.messages import NO_TRANSACTION, Message
from spark_sink.debezium.options import MessageOptions, quoted
from spark_sink.debezium.schemas import with_schemas

_MESSAGE = ["topic", "key", "value", "transaction", "namespace", "time"]


@dataclass(frozen=True)
class WithTransactions:
    """Adds the transactions to all messages of a batch of the stream, for one of Spark's tasks.

    The task gets all messages of the batch, in any order, and returns them in the stream's. Events
    of a transaction that ends with the batch are followed by END with the last event's time.
    """

    options: MessageOptions

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the messages, those with the columns of `ORDERED`, as topic, key and value."""
        collected = list(batches)
        if not collected:
            return
        table = pa.Table.from_batches(collected).combine_chunks()
        table = table.sort_by([("token", "ascending"), ("index", "ascending")]).select(_MESSAGE)
        monitor = _Monitor(self.options.boundaries)
        for batch in table.to_batches(max_chunksize=10_000):
            columns = [column.to_pylist() for column in batch.columns]
            messages = (Message(*row) for row in zip(*columns, strict=True))
            made = batch_of(each for message in messages for each in monitor.after(message))
            yield self._complete(made)
        yield self._complete(batch_of(monitor.end()))

    def _complete(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        return with_schemas(messages, self.options) if self.options.schemas else messages


class _Monitor:
    """Follows the transactions of a stream of messages in its order."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._open: str | None = None
        self._time = 0
        self._counts: Counter[str] = Counter()

    def after(self, message: Message) -> Iterator[Message]:
        """Return what the transaction adds before a message, and the message itself."""
        if message.namespace is None:  # a tombstone, or a heartbeat
            yield message
            return
        if message.transaction != self._open:
            self._time = message.time
            yield from self.end()
            if message.transaction is not None:
                self._open = message.transaction
                yield self._boundary("BEGIN", "null", "null")
        self._time = message.time
        if message.transaction is None or message.value is None:
            yield message
            return
        self._counts[message.namespace] += 1
        place = (
            f'"transaction":{{"id":{message.transaction},'
            f'"total_order":{self._counts.total()},'
            f'"data_collection_order":{self._counts[message.namespace]}}}}}'
        )
        yield message._replace(value=message.value.removesuffix(NO_TRANSACTION) + place)

    def end(self) -> Iterator[Message]:
        """Return the end of the open transaction, if there is one."""
        if self._open is None:
            return
        counts = ",".join(
            f'{{"data_collection":{quoted(name)},"event_count":{count}}}'
            for name, count in sorted(self._counts.items())
        )
        yield self._boundary("END", str(self._counts.total()), f"[{counts}]")
        self._open = None
        self._counts.clear()

    def _boundary(self, status: str, count: str, collections: str) -> Message:
        name = self._open
        value = (
            f'{{"status":"{status}","id":{name},"event_count":{count},'
            f'"data_collections":{collections},"ts_ms":{self._time}}}'
        )
        return Message(self._topic, f'{{"id":{name}}}', value)
