"""What determines Debezium's messages: their form, and the names of their topics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_sink.debezium.outbox import Outbox
from spark_sink.debezium.unwrapping import Unwrap
from spark_sink.errors import OptionError
from spark_sink.options import parsers
from spark_sink.options.declared import canonical, option, option_names, parsed

_LONGEST_NAME = 249
_Transform = TypeVar("_Transform")
_VALID = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-")


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return values as texts: those that are none as JSON, without those that are None."""
    known = {name: value for name, value in given.items() if value is not None}
    return {
        name: value if isinstance(value, str) else json.dumps(value, default=dict)
        for name, value in known.items()
    }


def _transform(kind: type[_Transform], owner: str) -> Callable[[str], _Transform]:
    """Return a parser of a transform's properties."""

    def parse(text: str) -> _Transform:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("must be an object of the transform's properties")
        return parsed(kind, _texts(canonical(document, option_names(kind), owner=owner)), owner)

    return parse


_unwrap, _outbox = _transform(Unwrap, " of unwrap"), _transform(Outbox, " of outbox")


@dataclass(frozen=True)
class MessageOptions:
    """Debezium's options, by the names of its properties.

    Args:
        prefix: topic.prefix.
        tombstones: tombstones.on.delete.
        transactions: provide.transaction.metadata: the order of events within their transaction,
            and messages for its BEGIN and END.
        delimiter: topic.delimiter.
        naming: topic.naming.strategy: Debezium's default, or DefaultUnicodeTopicNamingStrategy.
        transaction_topic: topic.transaction.
        heartbeat_prefix: topic.heartbeat.prefix.
        heartbeat_topic: topic.heartbeat.name.
        schemas: schemas.enable of Kafka Connect's JSON converter: keys and values have schemas.
        schema_registry_url: schema.registry.url of Confluent's AvroConverter: keys and values are
            Avro whose schemas are in a registry. URLs with commas between them; a login is in the
            URL.
        unwrap, outbox: the properties, by their names, of the transform ExtractNewDocumentState if
            messages are to have documents as values, or of MongoEventRouter if the rows are those
            of an outbox: fields of `Unwrap` and of `Outbox`. As a text they are JSON.

    Raises OptionError for options that exclude each other, and for an invalid URL.
    """

    prefix: str = option("prefix", str, "")
    tombstones: bool = option("tombstones", parsers.boolean, True)
    transactions: bool = option("transactions", parsers.boolean, False)
    delimiter: str = option("delimiter", str, ".")
    naming: str = option("naming", parsers.one_of("default", "unicode"), "default")
    transaction_topic: str = option("transaction_topic", str, "transaction")
    heartbeat_prefix: str = option("heartbeat_prefix", str, "__debezium-heartbeat")
    heartbeat_topic: str | None = option("heartbeat_topic", str, None)
    schemas: bool = option("schemas", parsers.boolean, False)
    schema_registry_url: str | None = option("schema_registry_url", str, None, shown=False)
    unwrap: Unwrap | None = option("unwrap", _unwrap, None)  # noqa: RUF009
    outbox: Outbox | None = option("outbox", _outbox, None)  # noqa: RUF009

    @classmethod
    def of(cls, given: Mapping[str, Any], owner: str = "") -> MessageOptions:
        """Return options by their names, as texts or values; the properties may be a mapping.

        `owner` follows an option's name in messages, such as " of the sink". Raises OptionError.
        """
        return parsed(cls, _texts(canonical(given, option_names(cls), owner=owner)), owner)

    def __post_init__(self) -> None:
        if not self.prefix:
            raise OptionError("prefix must not be empty: it is the first part of each topic")
        if self.unwrap is not None and self.outbox is not None:
            raise OptionError("unwrap and outbox exclude each other: leave one out")
        with_schemas = self.schemas or self.schema_registry_url is not None
        if self.schema_registry_url is not None:
            # Executors have urllib3 for Avro messages only.
            from spark_sink.debezium.schema_registry import addresses_in

            addresses_in(self.schema_registry_url)
            if self.schemas:
                raise OptionError(
                    "schemas is for JSON, schema_registry_url for Avro: leave one out"
                )
        if self.transform is not None and (with_schemas or self.transactions):
            raise OptionError(
                "unwrap and outbox make messages without schemas and transactions: leave out the "
                "options schemas, schema_registry_url and transactions"
            )

    @property
    def transform(self) -> Unwrap | Outbox | None:
        """One of Debezium's transforms of messages, None for none."""
        return self.unwrap or self.outbox

    @property
    def topic_of_heartbeats(self) -> str:
        """The topic of heartbeats."""
        return self.heartbeat_topic or f"{self.heartbeat_prefix}{self.delimiter}{self.prefix}"

    @property
    def topic_of_boundaries(self) -> str:
        """The topic of the transactions' beginnings and ends."""
        return f"{self.prefix}{self.delimiter}{self.transaction_topic}"

    def topic(self, database: str, collection: str) -> str:
        """Return the topic of a collection's changes."""
        parts = (self.prefix, database, collection)
        return sanitized(self.delimiter.join(filter(str.strip, parts)), self.naming)


def sanitized(name: str, naming: str = "default") -> str:
    """Return a name in which Kafka's invalid characters are replaced as Debezium replaces them."""
    units = name.encode("utf-16-le", "surrogatepass")
    characters = (chr(units[at] | units[at + 1] << 8) for at in range(0, len(units), 2))
    if naming == "unicode":
        text = "".join(c if c in _VALID else f"_u{ord(c):04x}" for c in characters)
    else:
        text = "".join(c if c in _VALID else "_" for c in characters)
    if text in (".", ".."):
        return "_" * len(text) if naming == "default" else "_u002e" * len(text)
    return text[:_LONGEST_NAME]
