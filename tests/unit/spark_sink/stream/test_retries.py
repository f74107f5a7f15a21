"""Retries after failures, and Debezium's options for them."""

import socket
import struct
import time
from collections.abc import Generator
from contextlib import closing, suppress
from datetime import UTC, datetime
from threading import Event, Thread, current_thread
from typing import Any, cast
from unittest.mock import Mock, patch

import bson
import pytest
from bson.timestamp import Timestamp
from pymongo.errors import AutoReconnect, OperationFailure

from shard_client.bson.resume_token import high_water_mark
from spark_sink.errors import OptionError, StreamError
from spark_sink.events.positions import AtTime, Token
from spark_sink.options.stream_options import RetryPolicy, parse_options
from spark_sink.source.event_tasks import EventsTask, TaskReader
from spark_sink.source.readers import MergerouterStreamReader
from spark_sink.stream import raw_replies, router_client
from spark_sink.stream.event_stream import EventStream, read_runs
from spark_sink.stream.raw_replies import one_ahead
from spark_sink.stream.retries import Retries
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
        stream.next_run()
    assert history.failures == []


def test_a_server_that_ends_the_stream_repeatedly_is_reported_as_one_that_answers() -> None:
    ended = Mock(alive=False, resume_token=None, try_reply=Mock(return_value=[]))
    stream = EventStream(
        lambda _: ended,
        AtTime(History().now),
        retry_policy=RetryPolicy(attempts=2),
        sleep=lambda _: None,
    )
    with pytest.raises(StreamError, match=r"answers, but not as it should.*closes the stream"):
        stream.next_run()


class HangingServer:
    """A mongos in a thread: it answers until it gets a command `first`, and then keeps silent.

    If it `answers_hello`, it goes on to do that, so that the driver takes it for healthy.
    """

    def __init__(self, first: str = "getMore", *, answers_hello: bool = False) -> None:
        self._first, self._answers_hello = first, answers_hello

    def __enter__(self) -> int:
        self._hangs = Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        Thread(target=self._accept, daemon=True).start()
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                Thread(target=self._serve, args=self._socket.accept()[:1], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        time_now = {"clusterTime": Timestamp(9, 1), "signature": {}}
        with suppress(OSError, struct.error), client, client.makefile("rb") as received:
            while True:
                size, number, _, _ = struct.unpack("<iiii", received.read(16))
                body = received.read(size - 16)
                name = next(iter(bson.decode(body[5:])))
                if name == self._first or self._hangs.is_set():
                    self._hangs.set()
                    if not (name == "hello" and self._answers_hello):
                        continue
                reply: dict[str, Any] = {"msg": "isdbgrid", "maxWireVersion": 21, "ok": 1.0}
                reply |= {"localTime": datetime.now(UTC), "$clusterTime": time_now}
                if name == "aggregate":
                    token = {"_data": high_water_mark(Timestamp(9, 1))}
                    cursor = {"id": 7, "ns": "admin.$cmd.aggregate", "firstBatch": []}
                    reply |= {"cursor": {**cursor, "postBatchResumeToken": token}}
                text = struct.pack("<IB", 0, 0) + bson.encode(reply)
                client.sendall(struct.pack("<iiii", 16 + len(text), 1, number, 2013) + text)


def test_a_router_that_hangs_and_keeps_its_connections_ends_no_getmore_late() -> None:
    """The driver's monitor of the server times out, and interrupts the connections in use."""
    with HangingServer() as port:
        uri = f"mongodb://127.0.0.1:{port}/?connectTimeoutMS=500&heartbeatFrequencyMS=500"
        options = parse_options({"uri": uri, "connect.max.attempts": "2"})
        begun = time.monotonic()
        with closing(RouterClient(options)) as client:
            stream = EventStream(
                client.watch_events, AtTime(Timestamp(9, 1)), retry_policy=options.retry_policy
            )
            with closing(stream), pytest.raises(StreamError, match="gave up after 2 attempts"):
                list(iter(stream.next_run, None))
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize("first", ["aggregate", "getMore"])
def test_a_server_that_answers_nothing_but_hellos_fails_the_stream(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_client, "_ANSWERED_WITHIN", 0.3)
    monkeypatch.setattr(router_client, "CLOSED_WITHIN", 0.3)
    with HangingServer(first, answers_hello=True) as port:
        options = parse_options(
            {"uri": f"mongodb://127.0.0.1:{port}/", "connect.max.attempts": "2"}
        )
        told = "gave up after 2 attempts: the server cannot be reached or does not answer. Check"
        with closing(RouterClient(options)) as client:
            task = EventsTask(AtTime(Timestamp(9, 1)), AtTime(Timestamp(10, 1)))
            reader = TaskReader(task, client.watch_events, options.retry_policy)
            with pytest.raises(StreamError, match=told):
                list(reader.events())


def test_a_server_that_no_longer_answers_does_not_delay_the_end_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark waits for no planner whose process it ends: that would go on for half an hour."""
    monkeypatch.setattr(router_client, "_ANSWERED_WITHIN", 6.0)
    monkeypatch.setattr(raw_replies, "CLOSED_WITHIN", 0.3)
    with HangingServer("killCursors", answers_hello=True) as port:
        options = parse_options({"uri": f"mongodb://127.0.0.1:{port}/"})
        with closing(RouterClient(options)) as client:
            stream = client.watch_events(AtTime(Timestamp(9, 1)))
            begun = time.monotonic()
            stream.close()
            assert time.monotonic() - begun < 3


@pytest.mark.parametrize(
    ("code", "told"), [(18, "check the user"), (13, "check the user"), (11600, "start again later")]
)
def test_only_a_refused_login_is_reported_as_one(code: int, told: str) -> None:
    with closing(RouterClient(parse_options({"uri": "mongodb://me:secret@router"}))) as client:
        refused = Mock(side_effect=OperationFailure("no", code))
        with (
            patch("spark_sink.stream.router_client.require_deployment", refused),
            pytest.raises(StreamError, match=told) as caught,
        ):
            client.require_reachable()
    assert "secret" not in str(caught.value)


def test_a_metric_never_fails_a_query() -> None:
    reader = MergerouterStreamReader(parse_options({"uri": URI}), 0.0)
    for error in (AutoReconnect("away"), StreamError("the server has no cluster time")):
        reader._planner = Mock(newest=Mock(side_effect=error))
        assert reader.reportLatestOffset() is None


def test_a_long_outage_does_not_count_as_a_stalled_stream() -> None:
    history = History()
    begin, end = (Token(history.insert(number)["_id"]) for number in range(2))
    event = bson.encode(history.events[1])
    replies: list[Any] = [[], *(lost_connection() for _ in range(20)), [], [event]]
    now = [0.0]

    stream = Mock(alive=True, resume_token=begin.document, try_reply=Mock(side_effect=replies))
    given = RetryPolicy(attempts=1, restarts=None)
    at = {"clock": lambda: now[-1], "sleep": lambda _: now.append(now[-1] + 60)}
    events = EventStream(lambda _: stream, begin, retry_policy=given, **at)
    found = list(read_runs(events, end))
    assert [key for run in found for key in run.keys] == [end.data]
    assert now[-1] == 20 * 60


def test_a_call_to_the_router_is_retried() -> None:
    options = {"connect.max.attempts": "3", "connect.backoff.initial.delay.ms": "1"}
    call = Mock(side_effect=[AutoReconnect("away"), AutoReconnect("away"), 5])
    with closing(RouterClient(parse_options({"uri": URI, **options}))) as client:
        assert client.with_retries(call) == 5
        call.side_effect = [OperationFailure("no", 13), 6]
        with pytest.raises(OperationFailure):
            client.with_retries(call)
        call.side_effect = [AutoReconnect("away")] * 3
        with pytest.raises(StreamError, match=r"^gave up after 3 attempts"):
            client.with_retries(call)


def test_an_option_sets_the_timeout_of_server_selection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"mongodb://127.0.0.1:{unused.getsockname()[1]}"
        options = {"uri": uri, "mongodb.server.selection.timeout.ms": "1700"}
        begin = time.monotonic()
        with (
            closing(RouterClient(parse_options(options))) as client,
            pytest.raises(StreamError, match="cannot be reached"),
        ):
            client.require_reachable()
        assert time.monotonic() - begin >= 1.7


def test_names_that_dns_does_not_know_are_reported() -> None:
    with pytest.raises(StreamError, match="DNS has no servers for the name"):
        RouterClient(parse_options({"uri": "mongodb+srv://cluster0.abcde.invalid/"}))


@pytest.mark.parametrize("reads_on", [False, True])
def test_the_next_reply_is_read_while_one_is_used(reads_on: bool) -> None:
    is_asked, is_closed = Event(), Event()

    def source() -> Generator[int]:
        try:
            yield 1
            assert current_thread().daemon, "a process that exits would wait for a server"
            is_asked.set()
            raise StreamError("the servers are gone")
        finally:
            is_closed.set()

    with closing(cast("Generator[int]", one_ahead(source()))) as replies:
        assert next(replies) == 1
        assert is_asked.wait(60)
        if reads_on:
            with pytest.raises(StreamError, match="are gone"):
                next(replies)
    assert is_closed.is_set()
