"""The client of a schema registry, against a small server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from spark_sink.debezium import schema_registry
from spark_sink.debezium.schema_registry import addresses_in, register_schema
from spark_sink.errors import StreamError
from spark_sink.options.stream_options import RetryPolicy
from tests.doubles.schema_registry import SchemaRegistry, serving
from tests.harness.certificates import Authority

FEW = RetryPolicy(initial_backoff=0.01, max_backoff=0.01, attempts=3)
LONG = RetryPolicy(initial_backoff=0.01, max_backoff=0.01)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with serving(SchemaRegistry()) as registry:
        yield registry


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
        (301, b"", "redirects to: https://elsewhere/"),
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


def test_a_registry_that_restarts_is_waited_for():
    with serving(SchemaRegistry()) as registry:
        assert ask(registry) == 1
    port = int(registry.url.split(":")[2].split("/")[0])
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(ask(registry, LONG)))
    asking.start()
    with serving(registry, port):
        asking.join(30)
    assert found == [1]
