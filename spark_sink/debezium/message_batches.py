"""Turns batches of rows into batches of Debezium's messages, for queries and for a job's table.

The task that reads the events of a job makes its messages and writes them, so that they do not pass
through Spark.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import ModuleType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from bson.errors import InvalidBSON
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from spark_sink.debezium.connect_schemas import with_schemas
from spark_sink.debezium.connect_values import quoted
from spark_sink.debezium.envelope import NO_TRANSACTION
from spark_sink.debezium.messages import MESSAGE, MessageMaker
from spark_sink.debezium.options import MessageOptions
from spark_sink.errors import OptionError, StreamError, without_traceback
from spark_sink.events.heartbeats import HEARTBEAT
from spark_sink.rows.arrow_types import batch_of, rows_in
from spark_sink.rows.layouts import Values

# The most bytes of events whose messages are made together, unless one is larger.
_MADE_TOGETHER = 32 * 1024 * 1024
# The most events: replies have up to 16 MiB of them, and a message with its schemas has 5 kB more.
_MOST_TOGETHER = 10_000


_TOKEN = pa.field("token", pa.string())
_TEXTS = pa.schema([MESSAGE.field(name) for name in ("topic", "key", "value")])
MESSAGE_ROWS = pa.schema(
    [_TOKEN, MESSAGE.field("index"), *_TEXTS, pa.field("clusterTime", pa.timestamp("us", "UTC"))]
)
"""The columns of a job's table: a message, the time of its event, and the place of the message in
the stream: by `token`, and by `index` among the messages of one event."""
UNIQUE = ("token", "key", "value")
"""The columns of MESSAGE_ROWS whose values rarely repeat."""
ORDERED = from_arrow_schema(MESSAGE.set(0, _TOKEN))
"""The columns of messages that are put into order: by token, and by index for one event's."""


def table_options(given: Mapping[str, str]) -> MessageOptions:
    """Return the options of the messages of a job's table, from texts. Raises OptionError."""
    options = MessageOptions.of(given, " of the messages")
    if options.transactions:
        raise OptionError(
            "transactions is not for a job's table: leave it out; the table has each event's "
            "token, and the table transactions has what BEGIN and END contain"
        )
    if options.schema_registry_url is not None:
        raise OptionError(
            "schema_registry_url is not for a job's table: leave it out; Avro is for Kafka, to "
            "which a query with to_debezium writes"
        )
    return options


@dataclass(frozen=True)
class Messages:
    """Makes messages of batches of rows, for Spark's tasks.

    The rows have the column `event`, and the messages topic, key and value. With the option
    `transactions` the rows also have `token`, and the messages the columns of `ORDERED`.
    """

    options: MessageOptions
    clock: Callable[[], int] = time.time_ns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the messages of each batch as batches. Raises StreamError as `of_rows`."""
        maker = MessageMaker(self.options, self.clock)
        for part, made in chain.from_iterable(_made_of(maker, batch) for batch in batches):
            if self.options.transactions:
                yield made.set_column(0, _TOKEN, part["token"].take(made["row"]).cast(_TOKEN.type))
            else:
                yield converted(made, self.options)

    def of_rows(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        """Return the messages of rows of the source, as the columns MESSAGE_ROWS.

        Raises StreamError for an event that cannot be read.
        """
        chosen = rows.select(("token", "clusterTime", "event"))
        if rows["op"].null_count:
            heartbeats = pc.equal(rows["operationType"], HEARTBEAT)
            chosen = chosen.filter(pc.or_(rows["op"].is_valid(), heartbeats))
        for part, made in _made_of(MessageMaker(self.options, self.clock), chosen):
            token, time = (part[name].take(made["row"]) for name in ("token", "clusterTime"))
            columns = [token, made["index"], *converted(made, self.options).columns, time]
            yield pa.Table.from_arrays(columns, MESSAGE_ROWS.names)


def _made_of(
    maker: MessageMaker, batch: pa.RecordBatch
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Return parts of a batch with the column `event`, each with its messages.

    The parts have a bounded size. Raises StreamError.
    """
    number = batch.column("event").nbytes // _MADE_TOGETHER + 1
    rows = max(1, min(-(-batch.num_rows // number), _MOST_TOGETHER))
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        events = part.column("event").cast(pa.binary())
        with without_traceback():
            try:
                made = maker.of_events(Values.of(events))
            except InvalidBSON as error:
                raise StreamError(
                    "no message can be made of an event: remove documents=raw and set "
                    "errors.tolerance=all, with which a job writes such events to quarantine",
                    error,
                ) from error
            except LookupError as error:
                raise StreamError(
                    "an event lacks a field that its message needs: let the option pipeline keep "
                    "all fields but those of documents",
                    error,
                ) from error
        yield part, made


def converted(messages: pa.RecordBatch, options: MessageOptions) -> pa.RecordBatch:
    """Return the topic, key and value of messages as consumers get them."""
    messages = messages.select(_TEXTS.names)
    if options.schema_registry_url is not None:
        with without_traceback():
            made: pa.RecordBatch = _avro().with_avro(messages, options)
        return made
    return with_schemas(messages, options) if options.schemas else messages


def _avro() -> ModuleType:
    """Return the module that makes Avro, which needs two more packages. Raises OptionError."""
    try:
        from spark_sink.debezium import avro
    except ImportError as error:
        raise OptionError(
            "schema_registry_url requires two packages on driver and executors: pip install "
            "fastavro urllib3",
            error,
        ) from None
    return avro


class _Message(NamedTuple):
    """A message with the columns that `WithTransactions` reads: see MESSAGE."""

    topic: str
    key: str
    value: str | None
    transaction: str | None = None
    namespace: str | None = None
    time: int | None = None


@dataclass(frozen=True)
class WithTransactions:
    """Adds BEGIN, END, and each event's order to a batch's messages, in one of Spark's tasks.

    Debezium counts while it reads the merged stream: a transaction begins with its first event and
    ends with the first event that does not belong to it; END has the time of that event. The task
    gets all messages of the batch, in any order, and returns them in the stream's. Events of a
    transaction that ends with the batch are followed by END with the last event's time.
    """

    options: MessageOptions

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return topic, key and value of messages that have the columns of `ORDERED`."""
        collected = list(batches)
        if not collected:
            return
        table = pa.Table.from_batches(collected)
        collected.clear()
        large = {pa.string(): pa.large_string()}  # all texts together may have more than 2 GiB
        kinds = [(field.name, large.get(field.type, field.type)) for field in table.schema]
        table = table.cast(pa.schema(kinds))
        table = table.sort_by([("token", "ascending"), ("index", "ascending")])
        rows = max(1, min(_MOST_TOGETHER, table.num_rows * _MADE_TOGETHER // max(1, table.nbytes)))
        parts = table.select(_Message._fields).to_batches(max_chunksize=rows)
        made = self._added_to(_Message(*row) for part in parts for row in rows_in(part))
        while messages := list(islice(made, rows)):
            yield converted(batch_of((each[:3] for each in messages), _TEXTS), self.options)

    def _added_to(self, messages: Iterable[_Message]) -> Iterator[_Message]:
        """Return messages in the stream's order, with what their transactions add to them."""
        transaction, time, counts = None, None, Counter[str]()
        for message in messages:
            if message.namespace is None:  # a tombstone, or a heartbeat
                yield message
                continue
            time = message.time
            if message.transaction != transaction:
                if transaction is not None:
                    yield self._end(transaction, counts, time)
                transaction = message.transaction
                counts.clear()
                if transaction is not None:
                    yield self._boundary("BEGIN", transaction, "null", "null", time)
            if transaction is None or message.value is None:
                yield message
                continue
            counts[message.namespace] += 1
            place = (
                f'"transaction":{{"id":{transaction},"total_order":{counts.total()},'
                f'"data_collection_order":{counts[message.namespace]}}}}}'
            )
            yield message._replace(value=message.value.removesuffix(NO_TRANSACTION) + place)
        if transaction is not None:
            yield self._end(transaction, counts, time)

    def _end(self, transaction: str, counts: Counter[str], time: int | None) -> _Message:
        counted = ",".join(
            f'{{"data_collection":{quoted(name)},"event_count":{count}}}'
            for name, count in sorted(counts.items())
        )
        return self._boundary("END", transaction, str(counts.total()), f"[{counted}]", time)

    def _boundary(
        self, status: str, transaction: str, count: str, collections: str, time: int | None
    ) -> _Message:
        value = (
            f'{{"status":"{status}","id":{transaction},"event_count":{count},'
            f'"data_collections":{collections},"ts_ms":{time}}}'
        )
        return _Message(self.options.topic_of_boundaries, f'{{"id":{transaction}}}', value)


MESSAGES = "topic string, key string, value string"
"""The columns, as Spark's Kafka sink expects them; key and value are binary if they are Avro."""


def to_debezium(rows: DataFrame, prefix: str, **options: Any) -> DataFrame:
    """Return Debezium's messages for changes, for a snapshot's documents, and for heartbeats.

    The columns are topic, key and value: texts, or with `schema_registry_url` binary Avro. The
    messages of a document are in the order of the rows of each of Spark's partitions; with
    `transactions` all messages of a batch are in the stream's order, in one partition.

    Args:
        rows: of this package's source: a batch or a stream.
        prefix: Debezium's topic.prefix, which also names the source.
        options: the other fields of `MessageOptions`.

    Raises OptionError for options that are unknown or exclude each other.
    """
    given = MessageOptions.of({"prefix": prefix, **options}, " of to_debezium")
    columns = MESSAGES if given.schema_registry_url is None else _avro().MESSAGES
    wanted = rows.where(F.col("op").isNotNull() | (F.col("operationType") == HEARTBEAT))
    if not given.transactions:
        return wanted.select("event").mapInArrow(Messages(given), columns)
    ordered = wanted.select("event", "token").mapInArrow(Messages(given), ORDERED)
    return ordered.repartition(1).mapInArrow(WithTransactions(given), columns)
