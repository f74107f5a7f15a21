"""Messages as Avro; tests/debezium compares them with Kafka Connect's converter."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from bson import Int64
from bson.timestamp import Timestamp

from spark_sink import debezium
from spark_sink.debezium.avro import adjusted, avro_schema
from spark_sink.debezium.message_batches import Messages, WithTransactions
from spark_sink.debezium.options import MessageOptions
from spark_sink.debezium.schemas import connect_schemas
from spark_sink.debezium.unwrapping import Unwrap
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.heartbeats import heartbeat
from tests.doubles.schema_registry import SchemaRegistry, serving
from tests.unit.spark_sink.debezium.made_messages import LSID, NOW, event

SESSION = {"lsid": LSID, "txnNumber": Int64(1)}
UPDATE = {
    "updatedFields": {"a": "é😀"},
    "removedFields": ["b", "c"],
    "truncatedArrays": [{"field": "list", "newSize": 2}],
}
EVENTS = [
    event("insert", fullDocument={"_id": 1, "a": 'q"'}, **SESSION),
    event("update", updateDescription=UPDATE, **SESSION),
    event("insert", ns={"db": "my-db", "coll": "2 words"}, fullDocument={"_id": 1}),
    event("delete"),
    heartbeat(Timestamp(1_700_000_000, 7)),
]


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with serving(SchemaRegistry()) as registry:
        yield registry


def made(options: MessageOptions, *events: bytes) -> list[tuple[str, Any, Any]]:
    """Return the messages of events, as Spark's tasks make them."""
    tokens = [f"{index:06}" for index in range(len(events))]
    batch = pa.RecordBatch.from_pydict({"event": list(events), "token": tokens})
    found = Messages(options, ordered=options.transactions, clock=lambda: NOW)([batch])
    if options.transactions:
        found = WithTransactions(options)(found)
    return [tuple(row.values()) for each in found for row in each.to_pylist()]


def read(registry: SchemaRegistry, message: bytes | None) -> Any:
    """Read a message with the schema of its id, by fastavro."""
    if message is None:
        return None
    datum = io.BytesIO(message[5:])
    found = fastavro.schemaless_reader(datum, registry.schema_of(message), None)
    assert datum.read() == b""
    return found


@pytest.mark.parametrize("transactions", [False, True])
def test_messages_are_avro_with_the_id_of_their_schema(registry, transactions):
    options = MessageOptions("p", transactions=transactions, schema_registry_url=registry.url)
    found = made(options, *EVENTS)
    plain = made(MessageOptions("p", transactions=transactions), *EVENTS)
    assert len(plain) == (8 if transactions else 6)
    for (topic, key, value), (plain_topic, plain_key, plain_value) in zip(
        found, plain, strict=True
    ):
        assert topic == plain_topic
        assert read(registry, key) == json.loads(plain_key)
        assert read(registry, value) == (plain_value and json.loads(plain_value))


def test_a_schema_is_registered_once_for_a_topic(registry):
    options = MessageOptions("p", schema_registry_url=registry.url)
    for _ in range(3):
        made(options, *EVENTS)
    topics = "p.inventory.customers", "p.my-db.2_words", "__debezium-heartbeat.p"
    wanted = [f"{topic}-{part}" for topic in topics for part in ("key", "value")]
    assert sorted(each.subject for each in registry.requests) == sorted(wanted)


def test_a_failed_registration_is_tried_again_by_the_next_task(registry):
    options = MessageOptions("p", schema_registry_url=registry.url)
    registry.failures.append((409, b'{"error_code": 409, "message": "incompatible"}'))
    with pytest.raises(StreamError, match=r"409 for p\.inventory\.customers-key"):
        made(options, EVENTS[0])
    assert made(options, EVENTS[0])[0][1][:5] == b"\0\0\0\0\1"


def test_what_avro_lacks_are_properties():
    _, value = connect_schemas(MessageOptions("p"), "p.db.coll")
    found = avro_schema(value)
    assert (found["name"], found["namespace"]) == ("Envelope", "p.db.coll")
    fields = {each["name"]: each for each in found["fields"]}
    document = {"type": "string", "connect.version": 1, "connect.name": "io.debezium.data.Json"}
    assert fields["after"] == {"name": "after", "type": ["null", document], "default": None}
    source = {each["name"]: each for each in fields["source"]["type"]["fields"]}
    assert source["snapshot"]["type"][0]["connect.default"] == "false"
    assert source["snapshot"]["type"][1] == "null"
    assert source["snapshot"]["default"] == "false"
    description = fields["updateDescription"]["type"][1]
    assert "namespace" in description
    assert "namespace" not in description["fields"][2]["type"][1]["items"]


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("p.my-db.2coll.Key", "p.my_db.2coll.Key"),
        ("2p.c.Key", "_2p.c.Key"),
        ("-p.Key", "_p.Key"),
        (".p.Key", "_p.Key"),
    ],
)
def test_names_are_adjusted_as_debezium_does_for_avro(name, valid):
    assert adjusted(name) == valid


@pytest.mark.parametrize(
    "url",
    ["", "registry:8081", "ftp://registry", "http://", "http://r:x", "http://r?a=1", "http://a,b"],
)
def test_a_url_that_is_none_is_refused_without_its_password(url):
    with pytest.raises(OptionError, match="schema_registry_url must be like"):
        MessageOptions("p", schema_registry_url=url)
    with pytest.raises(OptionError) as caught:
        MessageOptions("p", schema_registry_url="http://user:secret@")
    assert "secret" not in str(caught.value)


def test_the_options_do_not_show_the_password():
    assert "secret" not in repr(MessageOptions("p", schema_registry_url="http://u:secret@r"))


@pytest.mark.parametrize(
    "other", [{"schemas": True}, {"version": "2.6"}, {"transform": Unwrap()}], ids=str
)
def test_avro_excludes_what_has_no_schema_or_two(other):
    with pytest.raises(OptionError, match="leave"):
        MessageOptions("p", schema_registry_url="http://registry", **other)


def test_without_fastavro_the_error_says_how_to_install_it(registry, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "spark_sink.debezium.avro")
    monkeypatch.delattr(debezium, "avro")
    with pytest.raises(OptionError, match="pip install fastavro"):
        made(MessageOptions("p", schema_registry_url=registry.url), EVENTS[0])
