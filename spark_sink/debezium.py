"""Rows of the source as the messages that Debezium's MongoDB connector sends to Kafka.

Fields and their forms are those of the connector's documentation, version 2.6: documents are texts
in MongoDB's strict extended JSON, a delete is followed by a tombstone. Messages have no schema
part, as with the converter's schemas.enable=false.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from bson import json_util
from bson.codec_options import CodecOptions, DatetimeConversion, TypeDecoder, TypeRegistry
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.errors import OptionError
from spark_sink.event_slices import decoded_documents
from spark_sink.event_values import OPERATIONS, transaction_name
from spark_sink.extended_json import CodeDecoder, Wrapped, text_encoder
from spark_sink.heartbeats import HEARTBEAT

MESSAGES = "topic string, key string, value string"
"""The columns, which Spark's Kafka sink takes as they are."""

VERSION = "2.6.2.Final"
"""The version of Debezium whose messages these are."""

HEARTBEAT_PREFIX = "__debezium-heartbeat"
"""What the name of the heartbeats' topic begins with, unless another prefix is given."""


class _LongDecoder(TypeDecoder):
    """Decodes longs as `Wrapped`: they are `$numberLong`, and `Int64` is a subclass of `int`."""

    bson_type = Int64

    def transform_bson(self, value: Any) -> Wrapped:
        return Wrapped(value)


_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="replace",
    type_registry=TypeRegistry([_LongDecoder(), CodeDecoder()]),
)
_STRICT = json_util.JSONOptions(
    json_mode=json_util.JSONMode.LEGACY,
    strict_number_long=True,
    datetime_representation=json_util.DatetimeRepresentation.LEGACY,
)


def to_debezium(
    rows: DataFrame,
    prefix: str,
    *,
    tombstones: bool = True,
    transactions: bool = False,
    heartbeat_prefix: str = HEARTBEAT_PREFIX,
) -> DataFrame:
    """The messages for the documents' changes, for a snapshot's documents, and for heartbeats.

    rows: of this package's source. prefix: Debezium's topic.prefix, which also names the source.
    tombstones: tombstones.on.delete. transactions: provide.transaction.metadata: the order of
    events in their transaction, and messages for its BEGIN and END; only of a batch (such as that
    of foreachBatch), since rows of a transaction have to be brought together. heartbeat_prefix:
    topic.heartbeat.prefix.

    Columns: topic, key, value. The order within a document is that of the rows.
    Raises OptionError for transactions of a stream.
    """
    told = rows.where(F.col("op").isNotNull() | (F.col("operationType") == HEARTBEAT))
    messages = _Messages(prefix, tombstones, heartbeat_prefix)
    if not transactions:
        return told.select("event", "shard").mapInArrow(messages, MESSAGES)
    if rows.isStreaming:
        raise OptionError(
            "transactions of a stream cannot be brought together: use to_debezium in foreachBatch"
        )
    columns = told.select("event", "shard", "lsid", "txnNumber", "token")
    alone = columns.where(F.col("txnNumber").isNull()).select("event", "shard")
    together = (
        columns.where(F.col("txnNumber").isNotNull())
        .repartition("lsid", "txnNumber")
        .sortWithinPartitions("lsid", "txnNumber", "token")
        .select("event", "shard")
    )
    return alone.mapInArrow(messages, MESSAGES).union(
        together.mapInArrow(replace(messages, transactions=True), MESSAGES)
    )


def envelope(
    event: dict[str, Any],
    prefix: str,
    shard: str | None,
    now_ns: int,
    transaction: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Key and value of the message for a document's event. now_ns: the time, since 1970."""
    cluster_time: Timestamp = event["clusterTime"]
    identifier = event["documentKey"]["_id"]
    operation = event["operationType"]
    wall = event.get("wallTime")
    seconds = cluster_time.time
    lsid = event.get("lsid")
    value: dict[str, Any] = {
        "before": _text(event.get("fullDocumentBeforeChange")),
        "after": _text(event.get("fullDocument")),
        "updateDescription": _description(event.get("updateDescription")),
        "source": {
            "version": VERSION,
            "connector": "mongodb",
            "name": prefix,
            "ts_ms": seconds * 1000,
            "ts_us": seconds * 1_000_000,
            "ts_ns": seconds * 1_000_000_000,
            "snapshot": _snapshot_kind(event),
            "db": event["ns"]["db"],
            "rs": shard,
            "collection": event["ns"]["coll"],
            "ord": cluster_time.inc,
            "lsid": _text(lsid),
            "txnNumber": _unwrapped(event.get("txnNumber")),
            "wallTime": None if wall is None else int(wall),
        },
        "op": OPERATIONS[operation],
        "ts_ms": now_ns // 1_000_000,
        "ts_us": now_ns // 1000,
        "ts_ns": now_ns,
        "transaction": transaction,
    }
    return {"id": _text(identifier)}, value


def _snapshot_kind(event: dict[str, Any]) -> bool | str:
    """Whether an event is a snapshot's document, or "incremental" for one of such a snapshot."""
    incremental = event.get("signal", {}).get("type") == "incremental"
    return "incremental" if incremental else event["operationType"] == "read"


def _description(description: dict[str, Any] | None) -> dict[str, Any] | None:
    if description is None:
        return None
    truncated = [
        {"field": each["field"], "size": _unwrapped(each["newSize"])}
        for each in description.get("truncatedArrays") or ()
    ]
    return {
        "removedFields": description.get("removedFields") or None,
        "updatedFields": _text(description.get("updatedFields")),
        "truncatedArrays": truncated or None,
    }


def _text(value: Any) -> str | None:
    """A value in strict extended JSON, as `json_util.dumps` writes it, by the encoder in C."""
    return None if value is None else _DOCUMENTS.encode(value)


def _strict(value: Any) -> Any:
    """What the encoder does not know: MongoDB's own types, the commonest first."""
    if isinstance(value, ObjectId):
        return {"$oid": str(value)}
    return json_util.default(_unwrapped(value), _STRICT)


_DOCUMENTS = json.JSONEncoder(default=_strict)
_encode = text_encoder(_strict)
"""Writes keys and values of messages, as Kafka's JSON converter does: without spaces."""


def _unwrapped(value: Any) -> Any:
    return value.value if isinstance(value, Wrapped) else value


@dataclass
class _Messages:
    """Makes messages of rows (event, shard), for Spark's tasks."""

    prefix: str
    tombstones: bool
    heartbeat_prefix: str = HEARTBEAT_PREFIX
    transactions: bool = False
    clock: Callable[[], int] = time.time_ns

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        open_one: _Transaction | None = None
        for batch in batches:
            messages: list[tuple[str, str, str | None]] = []
            events, shards = (column.to_pylist() for column in batch.columns)
            for event, shard in zip(decoded_documents(events, _CODEC), shards, strict=True):
                if event["operationType"] == HEARTBEAT:
                    messages.append(self._heartbeat())
                    continue
                if self.transactions:
                    name = _transaction_name(event)
                    if open_one is None or open_one.name != name:
                        messages += self._end(open_one)
                        open_one = _Transaction(name)
                        messages.append(self._boundary(open_one.begin()))
                    place = open_one.next(f"{event['ns']['db']}.{event['ns']['coll']}")
                else:
                    place = None
                messages += self._change(event, shard, place)
            yield _batch(messages)
        yield _batch(self._end(open_one))

    def _change(
        self, event: dict[str, Any], shard: str | None, place: dict[str, Any] | None
    ) -> Iterator[tuple[str, str, str | None]]:
        key, value = envelope(event, self.prefix, shard, self.clock(), place)
        topic = f"{self.prefix}.{event['ns']['db']}.{event['ns']['coll']}"
        yield topic, _encode(key), _encode(value)
        if value["op"] == "d" and self.tombstones:
            yield topic, _encode(key), None

    def _heartbeat(self) -> tuple[str, str, str | None]:
        topic = f"{self.heartbeat_prefix}.{self.prefix}"
        value = {"ts_ms": self.clock() // 1_000_000}
        return topic, _encode({"serverName": self.prefix}), _encode(value)

    def _end(self, transaction: _Transaction | None) -> list[tuple[str, str, str | None]]:
        return [] if transaction is None else [self._boundary(transaction.end())]

    def _boundary(self, value: dict[str, Any]) -> tuple[str, str, str | None]:
        return f"{self.prefix}.transaction", _encode({"id": value["id"]}), _encode(value)


class _Transaction:
    """Counts the events of a transaction."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._counts: Counter[str] = Counter()

    def begin(self) -> dict[str, Any]:
        return {
            "status": "BEGIN",
            "id": self.name,
            "event_count": None,
            "data_collections": None,
        }

    def next(self, namespace: str) -> dict[str, Any]:
        self._counts[namespace] += 1
        return {
            "id": self.name,
            "total_order": self._counts.total(),
            "data_collection_order": self._counts[namespace],
        }

    def end(self) -> dict[str, Any]:
        return {
            "status": "END",
            "id": self.name,
            "event_count": self._counts.total(),
            "data_collections": [
                {"data_collection": name, "event_count": count}
                for name, count in sorted(self._counts.items())
            ],
        }


def _transaction_name(event: dict[str, Any]) -> str:
    return transaction_name(bytes(event["lsid"]["id"]), _unwrapped(event["txnNumber"]))


def _batch(messages: list[tuple[str, str, str | None]]) -> pa.RecordBatch:
    columns = list(zip(*messages, strict=True)) or [(), (), ()]
    arrays = [pa.array(column, type=pa.string()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=["topic", "key", "value"])
