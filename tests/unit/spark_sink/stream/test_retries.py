"""Retries after failures, and Debezium's options for them."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from pymongo.errors import AutoReconnect, OperationFailure

from spark_sink.errors import OptionError, StreamError
from spark_sink.events.positions import AtTime, Token
from spark_sink.options.retries import Retries, RetryPolicy
from spark_sink.options.stream_options import parse_options
from spark_sink.stream.event_stream import EventStream, read_runs
from spark_sink.stream.router_client import RouterClient
from tests.doubles.event_history import History, lost_connection

URI = "mongodb://127.0.0.1:27020"


def retry_policy(**options: str) -> RetryPolicy:
    names = {name.replace("_", "."): text for name, text in options.items()}
    return parse_options({"uri": URI, **names}).retry_policy


def pauses(given: RetryPolicy, failures: int) -> list[float]:
    """Return the pauses after ``failures`` failures in a row, or up to the failure of the query."""
    slept: list[float] = []
    retries = Retries(given, clock=lambda: sum(slept), sleep=slept.append)
    with suppress(StreamError):
        for _ in range(failures):
            retries.wait(AutoReconnect("away"))
    return slept


def test_the_backoff_doubles_up_to_its_maximum() -> None:
    given = retry_policy(
        connect_backoff_initial_delay_ms="1000",
        connect_backoff_max_delay_ms="5000",
        connect_max_attempts="6",
    )
    slept = pauses(given, 99)
    assert len(slept) == 5
    for pause, whole in zip(slept, [1, 2, 4, 5, 5], strict=True):
        assert whole / 2 <= pause <= whole


def test_the_default_retries_for_a_minute() -> None:
    assert 60 <= sum(pauses(retry_policy(), 10_000)) < 62


def test_restarts_follow_after_their_delay(capsys: pytest.CaptureFixture[str]) -> None:
    given = retry_policy(
        connect_max_attempts="2", errors_max_retries="2", retriable_restart_connector_wait_ms="7000"
    )
    slept = pauses(given, 99)
    assert [pause for pause in slept if pause >= 1] == [7.0, 7.0]
    assert len(slept) == 5
    assert "AutoReconnect; retry 2 begins in 7 s" in capsys.readouterr().err
    assert str(given) == "2 attempts, 3 times"


def test_a_query_may_retry_without_limit() -> None:
    given = retry_policy(errors_max_retries="-1", connect_max_attempts="1")
    assert pauses(given, 500) == [10.0] * 500


def test_progress_resets_the_count() -> None:
    retries = Retries(RetryPolicy(attempts=2), sleep=lambda _: None)
    for _ in range(5):
        retries.wait(AutoReconnect())
        retries.reset()
    retries.wait(AutoReconnect())
    with pytest.raises(StreamError, match="gave up after 2 attempts"):
        retries.wait(AutoReconnect())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"connect.max.attempts": "0"}, "positive whole number"),
        ({"errors.max.retries": "-2"}, "must be -1 for no limit"),
        ({"mongodb.server.selection.timeout.ms": "0"}, "positive whole number"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({"uri": URI, **given})


def test_a_stream_fails_after_its_attempts() -> None:
    history = History()
    history.failures = [lost_connection() for _ in range(3)]
    stream = EventStream(
        history.watch,
        AtTime(history.now),
        retry_policy=RetryPolicy(attempts=3),
        sleep=lambda _: None,
    )
    with pytest.raises(StreamError, match=r"^gave up after 3 attempts: "):
        stream.next()
    assert history.failures == []


class Replies:
    """A stream whose every reply is listed: an event, None, or an error. Its token stands still."""

    alive = True

    def __init__(self, position: Token, replies: list[Any]) -> None:
        self.resume_token = position.document
        self._replies = replies

    def try_reply(self, events: list[bytes], max_await: float | None = None) -> None:
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        events += [] if reply is None else [bytes(reply.raw)]

    def close(self) -> None:
        pass


def test_a_long_outage_does_not_count_as_a_stalled_stream() -> None:
    history = History()
    begin, end = (Token(history.insert(number)["_id"]) for number in range(2))
    event = RawBSONDocument(bson.encode(history.events[1]))
    outage = [lost_connection() for _ in range(20)]
    stream = Replies(begin, [None, *outage, None, event])
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 60

    given = RetryPolicy(attempts=1, restarts=None)
    events = EventStream(
        lambda _: stream, begin, retry_policy=given, clock=lambda: now[0], sleep=sleep
    )
    found = list(read_runs(events, end))
    assert [key for run in found for key in run.keys] == [end.data]
    assert now[0] == 20 * 60


def test_a_call_to_the_router_is_retried() -> None:
    options: dict[str, Any] = {"connect.backoff.initial.delay.ms": "1"}
    client = RouterClient(parse_options({"uri": URI, "connect.max.attempts": "3", **options}))
    replies: list[Any] = [AutoReconnect("away"), AutoReconnect("away"), 5]

    def call() -> int:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return int(reply)

    try:
        assert client.with_retries(call) == 5
        replies[:] = [OperationFailure("no", 13), 6]
        with pytest.raises(OperationFailure):
            client.with_retries(call)
        replies[:] = [AutoReconnect("away")] * 3
        with pytest.raises(StreamError, match=r"^gave up after 3 attempts"):
            client.with_retries(call)
    finally:
        client.close()


def test_an_option_sets_the_timeout_of_server_selection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"mongodb://127.0.0.1:{unused.getsockname()[1]}"
        options = {"uri": uri, "mongodb.server.selection.timeout.ms": "1700"}
        client = RouterClient(parse_options(options))
        begin = time.monotonic()
        try:
            with pytest.raises(StreamError, match="cannot be reached"):
                client.require_reachable()
        finally:
            client.close()
        assert time.monotonic() - begin >= 1.7


def test_names_that_dns_does_not_know_are_reported() -> None:
    with pytest.raises(StreamError, match="DNS does not tell the servers"):
        RouterClient(parse_options({"uri": "mongodb+srv://cluster0.abcde.invalid/"}))
