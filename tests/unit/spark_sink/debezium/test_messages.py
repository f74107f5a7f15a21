"""Rows as Debezium's messages; tests/debezium compares them with Debezium's own."""

import re
import struct
from datetime import UTC, datetime
from random import Random
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from spark_sink.debezium import to_debezium
from spark_sink.debezium.connect_values import quoted
from spark_sink.debezium.message_batches import Messages, WithTransactions, table_options
from spark_sink.debezium.messages import MessageMaker
from spark_sink.debezium.options import MessageOptions, sanitized
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.heartbeats import heartbeat
from spark_sink.rows.arrow_types import rows_in
from spark_sink.rows.layouts import Values
from tests.debezium import values
from tests.unit.spark_sink.debezium.made_messages import LSID, NOW, event, messages

SESSION = (
    '{"id": {"$binary": "AAAAAAAAAAAAAAAAAAAABw==","$type": "04"},'
    '"uid": {"$binary": "dQ==","$type": "00"}}'
)


def test_an_update_has_every_field_of_the_envelope():
    [(topic, key, value)] = messages(
        event(
            "update",
            Int64(1004),
            fullDocument={"_id": Int64(1004), "name": "Anne Marie"},
            fullDocumentBeforeChange={"_id": Int64(1004), "name": "unknown"},
            updateDescription={
                "updatedFields": {"n": Int64(5), "b.c": [1, {"x": 1, "y": 2}]},
                "removedFields": ["b"],
                "truncatedArrays": [{"field": "a", "newSize": 2}],
            },
            lsid=LSID,
            txnNumber=Int64(1),
        )
    )
    # The key is relaxed extended JSON, documents are not: test_java_json.py has all types in both.
    assert (topic, key) == ("fulfillment.inventory.customers", {"id": "1004"})
    assert value == {
        "before": '{"_id": {"$numberLong": "1004"},"name": "unknown"}',
        "after": '{"_id": {"$numberLong": "1004"},"name": "Anne Marie"}',
        "updateDescription": {
            "removedFields": ["b"],
            "updatedFields": '{"n": 5, "b.c": [1, {"x": 1, "y": 2}]}',
            "truncatedArrays": [{"field": "a", "size": 2}],
        },
        "source": {
            "version": "3.6.3.Final",
            "connector": "mongodb",
            "name": "fulfillment",
            "ts_ms": 1_700_000_000_005,
            "snapshot": "false",
            "db": "inventory",
            "sequence": None,
            "ts_us": 1_700_000_000_005_000,
            "ts_ns": 1_700_000_000_005_000_000,
            "collection": "customers",
            "ord": 7,
            "lsid": SESSION,
            "txnNumber": 1,
            "wallTime": 1_700_000_000_005,
        },
        "op": "u",
        "ts_ms": 1_800_000_000_123,
        "transaction": None,
    }
    assert list(value) == [
        "before", "after", "updateDescription", "source", "op", "ts_ms", "transaction",
    ]  # fmt: skip


def test_a_delete_is_followed_by_a_tombstone():
    deleted, tombstone = messages(event("delete"))
    assert (deleted[2]["op"], deleted[2]["after"]) == ("d", None)
    assert tombstone == (*deleted[:2], None)
    assert len(messages(event("delete"), tombstones=False)) == 1


def test_a_snapshots_row_is_a_read_at_the_time_of_its_message():
    read = {"fullDocument": {"_id": 1004}}
    for signal, told in (
        ({"signal": {"type": "incremental"}}, "incremental"),
        ({"signal": {"type": "blocking"}}, "true"),
        ({}, "true"),
    ):
        [(_, _, value)] = messages(event("read", **read, **signal))
        source = value["source"]
        assert (value["op"], source["snapshot"]) == ("r", told)
    assert (source["ts_ns"], source["ts_us"], source["ord"]) == (NOW, NOW // 1000, -1)
    assert source["wallTime"] is None


def test_transactions_have_a_begin_an_end_and_orders():
    def write(number: int, coll: str) -> bytes:
        ns = {"db": "inventory", "coll": coll}
        return event("insert", fullDocument={}, ns=ns, lsid=LSID, txnNumber=Int64(number))

    found = messages(write(1, "a"), write(1, "b"), write(1, "a"), write(2, "a"), transactions=True)
    name = f"{SESSION}:1"
    boundaries = [value for topic, _, value in found if topic == "fulfillment.transaction"]
    assert [each["status"] for each in boundaries] == ["BEGIN", "END", "BEGIN", "END"]
    assert boundaries[0] == {
        "status": "BEGIN", "id": name, "event_count": None, "data_collections": None,
        "ts_ms": 1_700_000_000_005,
    }  # fmt: skip
    assert boundaries[1]["event_count"] == 3
    assert boundaries[1]["data_collections"] == [
        {"data_collection": "inventory.a", "event_count": 2},
        {"data_collection": "inventory.b", "event_count": 1},
    ]
    places = [value["transaction"] for topic, _, value in found if value not in boundaries]
    assert [(each["total_order"], each["data_collection_order"]) for each in places] == [
        (1, 1), (2, 1), (3, 2), (1, 1),
    ]  # fmt: skip
    assert found[0][0] == "fulfillment.transaction"


def test_an_event_outside_ends_a_transaction_and_stays_in_its_place():
    inside = event("delete", 1, lsid=LSID, txnNumber=Int64(1))
    later = event("insert", 1, fullDocument={}, wallTime=datetime(2023, 11, 14, 22, 14, tzinfo=UTC))
    found = messages(later, inside, later, inside, transactions=True)
    texts = [value and (value.get("status") or value["op"]) for _, _, value in found]
    assert texts == ["c", "BEGIN", "d", None, "END", "c", "BEGIN", "d", None, "END"]
    assert [value["ts_ms"] for _, _, value in found if value and "status" in value] == [
        1_700_000_000_005, 1_700_000_040_000, 1_700_000_000_005, 1_700_000_000_005,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("collection", "more", "topic"),
    [
        ("orders", {}, "fulfillment.inventory.orders"),
        ("p.w%q", {}, "fulfillment.inventory.p.w_q"),
        ("smile 😀", {}, "fulfillment.inventory.smile___"),
        ("Ü", {"naming": "unicode"}, "fulfillment.inventory._u00dc"),
        ("a_b", {"delimiter": "-", "naming": "unicode"}, "fulfillment-inventory-a_u005fb"),
        ("x" * 300, {}, "fulfillment.inventory." + "x" * 227),
    ],
)
def test_topics_are_named_as_debezium_names_them(collection, more, topic):
    ns = {"db": "inventory", "coll": collection}
    [(found, _, value)] = messages(event("insert", ns=ns, fullDocument={}), **more)
    assert found == topic
    assert value["source"]["collection"] == collection


@pytest.mark.parametrize("transactions", [False, True])
def test_messages_can_have_their_schemas(transactions):
    session = {"lsid": LSID, "txnNumber": Int64(1)}
    found = messages(event("delete", **session), schemas=True, transactions=transactions)
    plain = messages(event("delete", **session), transactions=transactions)
    for (topic, key, value), (_, plain_key, plain_value) in zip(found, plain, strict=True):
        assert key["payload"] == plain_key
        assert (value and value["payload"]) == plain_value
        if value:
            assert [each["field"] for each in value["schema"]["fields"]] == list(plain_value)
            is_change = topic == "fulfillment.inventory.customers"
            assert (value["schema"]["name"] == f"{topic}.Envelope") == is_change


def test_a_topic_of_dots_alone_is_replaced():
    assert [sanitized(".."), sanitized(".", "unicode")] == ["__", "_u002e"]


def test_strings_are_escaped_as_jackson_does():
    assert quoted('a"\x1f\n😀ä') == '"a\\"\\u001F\\n\\uD83D\\uDE00ä"'


def test_a_heartbeat_has_a_separate_topic():
    beat = heartbeat(Timestamp(1_700_000_000, 7))
    value = {"ts_ms": NOW // 1_000_000}
    key = {"serverName": "fulfillment"}
    assert messages(beat) == [("__debezium-heartbeat.fulfillment", key, value)]
    assert messages(beat, heartbeat_prefix="beats") == [("beats.fulfillment", key, value)]
    assert messages(beat, heartbeat_topic="all beats") == [("all beats", key, value)]


def test_messages_of_many_small_events_come_in_batches_of_a_bounded_number() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([event("insert")] * 25_000)], names=["event"])
    made = Messages(MessageOptions("p", schemas=True), clock=lambda: NOW)([batch])
    assert [each.num_rows for each in made] == [10_000, 10_000, 5_000]


def test_messages_in_the_streams_order_come_in_batches_of_a_bounded_size() -> None:
    large = event("insert", fullDocument={"_id": 1, "text": "x" * 15_000_000})
    tokens = [f"{number}" for number in range(4)]
    batch = pa.RecordBatch.from_pydict({"event": [large] * 4, "token": tokens})
    options = MessageOptions("p", transactions=True)
    made = WithTransactions(options)(Messages(options, clock=lambda: NOW)([batch]))
    assert [each.num_rows for each in made] == [2, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tombstone": False}, "unknown option 'tombstone' of to_debezium; did you mean 'tomb"),
        ({"transactions": "no"}, "'transactions' of to_debezium: must be true or false, not 'no'"),
        ({"naming": 1.0}, "'naming' of to_debezium: must be default or unicode, not '1.0'"),
        ({"prefix": ""}, "prefix must not be empty"),
        ({"unwrap": {"flatten": True}}, "unknown option 'flatten' of unwrap"),
    ],
)
def test_options_that_are_misspelled_or_of_another_type_are_refused(
    given: dict[str, Any], message: str
) -> None:
    rows: Any = None  # what is refused before rows are looked at
    with pytest.raises(OptionError, match=message):
        to_debezium(rows, **{"prefix": "p", **given})


@pytest.mark.parametrize("size", [0, 1, 30, 1500])
def test_messages_made_together_are_those_made_one_by_one(size: int) -> None:
    chance = Random(size)
    documents = [values.document(chance, values.identifier(chance, n), n) for n in range(9)]
    events = [_event(chance, chance.choice(documents)) for _ in range(size)]
    events.append(heartbeat(Timestamp(1, 7)))
    for tombstones in (True, False):
        maker = MessageMaker(MessageOptions("p", tombstones=tombstones), lambda: NOW)
        expected = [
            (index, *place_and_fields)
            for index, event in enumerate(events)
            for _, *place_and_fields in _messages(maker, [event])
        ]
        assert _messages(maker, events) == expected


def test_a_damaged_document_is_refused() -> None:
    whole = event("insert", fullDocument={"a": "text"})
    size = whole.index(b"\x02a\0") + 3
    damaged = whole[:size] + struct.pack("<i", 100) + whole[size + 4 :]
    with pytest.raises(bson.errors.InvalidBSON):
        _messages(MessageMaker(MessageOptions("p"), lambda: NOW), [*[whole] * 50, damaged])


def _messages(maker: MessageMaker, events: list[bytes]) -> list[tuple[Any, ...]]:
    return list(rows_in(maker.of_events(Values.of(events))))


def _event(chance: Random, document: RawBSONDocument) -> bytes:
    kind = chance.choice(("insert", "update", "replace", "delete", "read"))
    fields: dict[str, Any] = {
        "ns": {"db": chance.choice(("d", "ü", *map(str, range(40)))), "coll": "c%"},
        "clusterTime": Timestamp(chance.randrange(2**32), chance.randrange(2**32)),
        "wallTime": bson.DatetimeMS(chance.choice((0, -1, 1_700_000_000_005))),
    }
    if chance.random() < 0.3:
        fields["documentKey"] = {
            "shard": chance.choice(("a", 5)),
            "_id": chance.choice(values.TEXTS),
        }
    if kind == "read" and chance.random() < 0.5:
        fields["signal"] = {"type": chance.choice(("incremental", "blocking"))}
    if chance.random() < 0.3:
        fields |= {"lsid": LSID, "txnNumber": Int64(3)}
    if kind != "delete":
        fields["fullDocument"] = document
    if kind in ("replace", "delete"):
        fields["fullDocumentBeforeChange"] = chance.choice((None, document))
    if kind == "update":
        removed = chance.choice(([], ["x", 'y"']))
        cut = chance.choice(([], [{"field": "a.b", "newSize": 2}]))
        changed = {"updatedFields": document, "removedFields": removed, "truncatedArrays": cut}
        disambiguated = chance.choice(({}, {"disambiguatedPaths": {"a.0": ["a", "0"]}}))
        fields["updateDescription"] = changed | disambiguated
    return event(kind, values.identifier(chance, chance.randrange(99)), **fields)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "prefix must not be empty"),
        ({"prefix": "p", "tombstone": "true"}, "did you mean 'tombstones'"),
        ({"prefix": "p", "tombstones": "no"}, "of the messages: must be true or false, not 'no'"),
        ({"prefix": "p", "transactions": "true"}, "leave it out; the table has each event's token"),
        ({"prefix": "p", "schema_registry_url": "http://a"}, "Avro is for Kafka"),
        ({"prefix": "p", "unwrap": "{"}, "option 'unwrap' of the messages is not JSON"),
        ({"prefix": "p", "unwrap": "1"}, "option 'unwrap' of the messages: must be an object"),
    ],
)
def test_options_of_messages_are_validated(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        table_options(given)


def test_options_of_messages_have_names_in_any_case_and_values_of_their_types() -> None:
    options = table_options({"Prefix": "true", "Tombstones": "False", "heartbeat_topic": "false"})
    assert (options.prefix, options.tombstones, options.topic_of_heartbeats) == (
        "true",
        False,
        "false",
    )


@pytest.mark.parametrize(
    ("unusable", "remedy"),
    [
        (
            event("insert", fullDocument={"text": "a"}).replace(b"\x02text", b"\x20text"),
            "remove documents=raw and set errors.tolerance=all",
        ),
        (
            event("insert").replace(b"documentKey", b"documentKez"),
            "let the option pipeline keep all fields but those of documents (b'documentKey')",
        ),
    ],
    ids=["damaged", "without its key"],
)
def test_an_event_that_is_no_message_stops_job_and_query_with_the_remedy(
    unusable: bytes, remedy: str
) -> None:
    columns = {
        "token": pa.array(["82"]), "operationType": pa.array(["insert"]), "op": pa.array(["c"]),
        "clusterTime": pa.array([0], pa.timestamp("us", "UTC")), "event": pa.array([unusable]),
    }  # fmt: skip
    rows = pa.RecordBatch.from_pydict(columns)
    messages = Messages(table_options({"prefix": "p"}))
    for made in (messages.of_rows(rows), messages([rows])):  # of a job, and of a query
        with pytest.raises(StreamError, match=re.escape(remedy)):
            list(made)
