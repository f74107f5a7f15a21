"""A job's table of Debezium's messages: its options and columns, and how its rows are made.

`to_debezium` makes the same messages for queries. Here the task that reads the events makes them
and writes them, so they do not pass through Spark.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from bson.errors import InvalidBSON

from spark_sink.debezium.message_batches import converted, made_of
from spark_sink.debezium.messages import MessageMaker
from spark_sink.debezium.options import MessageOptions
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.heartbeats import HEARTBEAT
from spark_sink.options.values import canonical, option_names

MESSAGE_ROWS = pa.schema(
    [
        pa.field("token", pa.string()),
        pa.field("index", pa.int32()),
        *(pa.field(name, pa.string()) for name in ("topic", "key", "value")),
        pa.field("clusterTime", pa.timestamp("us", "UTC")),
    ]
)
"""The columns: a message, the time of its event, and the place of the message in the stream: by
`token`, and by `index` among the messages of one event."""
UNIQUE = ("token", "key", "value")
"""The columns whose values rarely repeat."""

_OWNER = " of --message"
_TRANSFORMS = ("unwrap", "outbox")
_LEFT_OUT = {
    "transactions": "the table has each event's token, and the table transactions has what "
    "BEGIN and END contain",
    "schema_registry_url": "Avro is for Kafka, to which a query with to_debezium writes",
}


def table_options(given: Mapping[str, str]) -> MessageOptions:
    """Return the options of the messages from texts, by the names of `to_debezium`'s arguments.

    `unwrap` and `outbox` are JSON. Raises OptionError.
    """
    known = ["prefix", *option_names(MessageOptions), *_TRANSFORMS]
    found = canonical(given, known, owner=_OWNER)
    for name, reason in _LEFT_OUT.items():
        if name in found:
            raise OptionError(f"--message {name} is not for tables: leave it out; {reason}")
    if "prefix" not in found:
        raise OptionError("--message prefix=NAME is missing: the first part of each topic")
    prefix = found.pop("prefix")
    unwrap, outbox = (
        _properties(name, found.pop(name)) if name in found else None for name in _TRANSFORMS
    )
    return MessageOptions.of(prefix, found, unwrap, outbox, _OWNER)


def _properties(name: str, text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"--message {name} is not JSON in quotes: '{name}={{}}'", error) from None
    if not isinstance(found, dict):
        raise OptionError(f"--message {name} must be an object of the transform's properties")
    return {
        each: value if isinstance(value, str) else json.dumps(value)
        for each, value in found.items()
    }


class MessageTable:
    """Makes the rows of a table of messages."""

    def __init__(self, options: MessageOptions) -> None:
        self._maker = MessageMaker(options, time.time_ns)
        self._options = options

    def of_rows(self, rows: pa.RecordBatch) -> Iterator[pa.Table]:
        """Return the messages of rows of the source, as the columns MESSAGE_ROWS.

        Raises StreamError for an event that cannot be read.
        """
        chosen = rows.select(("token", "clusterTime", "event"))
        if rows["op"].null_count:
            heartbeats = pc.equal(rows["operationType"], HEARTBEAT)
            chosen = chosen.filter(pc.or_(rows["op"].is_valid(), heartbeats))
        try:
            for part, made in made_of(self._maker, chosen):
                texts = converted(made, self._options)
                token, time = (part[name].take(made["row"]) for name in ("token", "clusterTime"))
                columns = [token, made["index"], *texts.columns, time]
                yield pa.Table.from_arrays(columns, MESSAGE_ROWS.names)
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
