"""Avro messages and the schema registry."""

import contextlib
import io
import json
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from bson import Int64
from bson.timestamp import Timestamp

from spark_sink import debezium
from spark_sink.debezium import schema_registry
from spark_sink.debezium.avro import adjusted, avro_schema
from spark_sink.debezium.connect_schemas import connect_schemas
from spark_sink.debezium.options import MessageOptions
from spark_sink.debezium.schema_registry import addresses_in, register_schema
from spark_sink.debezium.unwrapping import Unwrap
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.heartbeats import heartbeat
from spark_sink.options.stream_options import RetryPolicy
from tests.doubles.schema_registry import SchemaRegistry, serving
from tests.harness.certificates import Authority
from tests.unit.spark_sink.debezium.made_messages import LSID, event, made

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


@pytest.mark.parametrize("other", [{"schemas": True}, {"unwrap": Unwrap()}], ids=str)
def test_avro_excludes_what_has_no_schema_or_two(other):
    with pytest.raises(OptionError, match="leave"):
        MessageOptions("p", schema_registry_url="http://registry", **other)


def test_without_fastavro_the_error_says_how_to_install_it(registry, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    monkeypatch.delitem(sys.modules, "spark_sink.debezium.avro")
    monkeypatch.delattr(debezium, "avro")
    with pytest.raises(OptionError, match="pip install fastavro"):
        made(MessageOptions("p", schema_registry_url=registry.url), EVENTS[0])


FEW = RetryPolicy(initial_backoff=0.01, max_backoff=0.01, attempts=3)


def ask(registry: SchemaRegistry, policy: RetryPolicy = FEW, subject: str = "t-key") -> int:
    return register_schema(addresses_in(registry.url), subject, '"string"', policy)


def test_an_equal_schema_has_the_same_id(registry):
    assert [ask(registry), ask(registry, subject="a b/c-key")] == [1, 1]
    assert [each.subject for each in registry.requests] == ["t-key", "a b/c-key"]


def test_the_login_is_that_of_the_url(registry):
    url = registry.url.replace("http://", "http://me%40x:s%3Aecret@")
    assert register_schema(addresses_in(url), "t-key", '"string"') == 1
    assert registry.requests[0].authorization == "Basic bWVAeDpzOmVjcmV0"


@pytest.mark.parametrize(
    "failure", [(500, b"{}"), (503, b"<html>"), (429, b""), (408, b""), None], ids=str
)
def test_a_failure_that_may_pass_is_retried(registry, failure):
    registry.failures += [failure, failure]
    assert ask(registry) == 1
    assert len(registry.requests) == 3


@pytest.mark.parametrize("failure", [(500, b'{"message": "no leader"}'), None], ids=str)
def test_retries_end(registry, failure):
    registry.failures += [failure] * 3
    with pytest.raises(StreamError, match="gave up after 3 attempts: the schema registry at http"):
        ask(registry)
    assert len(registry.requests) == 3


@pytest.mark.parametrize(
    ("status", "body", "cause"),
    [
        (409, b'{"error_code": 409, "message": "READER_FIELD"}', "compatib.*READER_FIELD"),
        (422, b'{"error_code": 42201, "message": "Invalid schema"}', "AVRO.*Invalid schema"),
        (401, b"", "user and the password.*Unauthorized"),
        (403, b"[]", "right to write"),
        (404, b"<html>", "check the path"),
        (405, b"\xff", "check schema_registry_url"),
        (301, b"", r"redirects to: http://elsewhere/registry\d+ \("),
    ],
)
def test_a_refusal_is_final_and_names_the_remedy(registry, status, body, cause):
    registry.failures.append((status, body))
    url = registry.url.replace("http://", "http://me:secret@")
    with pytest.raises(StreamError, match=f"answers {status} for t-key: .*{cause}") as caught:
        register_schema(addresses_in(url), "t-key", '"string"', FEW)
    assert "secret" not in str(caught.value)
    assert len(registry.requests) == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"id": "1"}', b'{"id": true}',
                                  b'{"id": -1}', b'{"id": 4294967296}'])  # fmt: skip
def test_an_answer_without_an_id_is_no_registrys(registry, body):
    registry.failures.append((200, body))
    with pytest.raises(StreamError, match="no schema registry answers there"):
        ask(registry)


def test_a_silent_registry_is_left_after_a_bounded_time(registry, monkeypatch):
    monkeypatch.setattr(schema_registry, "_SECONDS", 0.1)
    registry.answering.clear()
    with pytest.raises(StreamError, match=r"gave up after 3 attempts.*timed out"):
        ask(registry)


def test_an_answer_that_drips_in_is_left_after_a_bounded_time(monkeypatch):
    monkeypatch.setattr(schema_registry, "_SECONDS", 0.1)

    def drip() -> None:
        client, _ = server.accept()
        with client:
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            with contextlib.suppress(OSError):
                while True:
                    client.sendall(b" ")
                    ended.wait(0.02)

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(StreamError, match=r"gave up after 1 attempt.*timed out within an"):
            register_schema(addresses_in(url), "t-key", '"string"', RetryPolicy(attempts=1))
    ended.set()


def test_another_registry_is_asked_where_one_does_not_answer(registry):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        urls = f"http://127.0.0.1:{closed.getsockname()[1]}, {registry.url}"
        assert register_schema(addresses_in(urls), "t-key", '"string"', FEW) == 1


def test_a_certificate_is_verified(tmp_path, monkeypatch):
    authority = Authority(tmp_path)
    with serving(SchemaRegistry(), certificate=authority.issue("registry")) as registry:
        with pytest.raises(StreamError, match=r"certificate of .* is not valid here: set SSL_CERT"):
            ask(registry)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        assert ask(registry) == 1
