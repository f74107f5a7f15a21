"""The planner and the reading of ranges on a fictional history, and the ends of transactions."""

import json
import pickle
import time
from contextlib import closing
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import bson
import pytest
from bson.errors import InvalidBSON
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_client.bson.resume_token import high_water_mark
from spark_sink.errors import HistoryLostError, StreamError
from spark_sink.events.positions import AtTime, EventRange, FromNow, Position, Token, is_after
from spark_sink.events.runs import sort_key
from spark_sink.options.stream_options import StreamOptions
from spark_sink.source.event_planner import EventPlanner
from spark_sink.source.event_tasks import EventsTask, TaskReader, divided
from spark_sink.source.lookahead import FIRST_EVENT_TIMEOUT, SAMPLE_SIZE
from spark_sink.source.offsets import Offset
from spark_sink.stream.event_stream import EventStream, read_runs
from spark_sink.stream.router_client import Clocks, Shard
from tests.doubles.event_history import (
    SHARDS,
    FakeStream,
    History,
    Inbox,
    SteppingClock,
    history_lost,
    lost_connection,
    planner,
)


def events_of(history: History, tasks: list[EventsTask], inbox: Inbox | None = None) -> list[bytes]:
    """Return the events that these tasks read, each unpickled as in another process.

    What the tasks report arrives in the inbox.
    """
    found = []
    for task in tasks:
        reader = TaskReader(pickle.loads(pickle.dumps(task)), history.watch)
        read = list(reader.events())
        assert reader.stats.events == len(read)
        if inbox is not None:
            inbox.stats_of_tasks.append(reader.stats)
        found += read
    return found


def keys(history: History, tasks: list[EventsTask], inbox: Inbox | None = None) -> list[str]:
    """Return the tokens of the events that these tasks read."""
    return list(map(sort_key, events_of(history, tasks, inbox)))


def backlog(count: int, a_second: int) -> tuple[History, Position]:
    """Return a history of so many events, so many a second, and the position before them."""
    history = History()
    start: Position = AtTime(history.now)
    for number in range(count):
        if number % a_second == 0:
            history.tick(seconds=1)
        history.insert(number)
    return history, start


def drain(
    history: History, start: Position, max_events: int | None, **options: Any
) -> list[list[str]]:
    """Return all batches up to the present, each planned, checkpointed as JSON and read."""
    plan = planner(history, **options)
    batches = []
    while True:
        batch = plan.next_batch(start, max_events)
        if batch.end == start:
            plan.close()
            assert history.open_streams == 0
            return batches
        batches.append(keys(history, plan.tasks(batch)))
        assert batch.events is None or batch.events >= len(batches[-1]) >= batch.events * 0.9
        # A batch that is repeated after a restart is defined by its ends alone.
        offset = Offset(batch.end, quiet_until=batch.quiet_until)
        assert Offset.of(json.loads(json.dumps(offset.document))) == offset
        again = EventRange(start, batch.end, quiet_until=batch.quiet_until)
        for sharded in (False, True):
            tasks = planner(history, sharded=sharded).tasks(again)
            assert sorted(keys(history, tasks)) == sorted(batches[-1])
        start = batch.end


@settings(max_examples=20)
@given(
    sizes=st.lists(st.integers(min_value=0, max_value=9), max_size=8),
    max_events=st.integers(min_value=1, max_value=7) | st.none(),
    events_per_task=st.integers(min_value=0, max_value=3),
    sharded=st.booleans(),
)
def test_every_event_is_in_one_batch(sizes, max_events, events_per_task, sharded):
    history = History()
    begin = history.now
    for size in sizes:  # a drop on three shards has one token three times
        for number in range(size):
            history.insert(number)
        history.drop(shards=3)
    batches = drain(
        history, AtTime(begin), max_events, events_per_partition=events_per_task, sharded=sharded
    )
    assert [key for batch in batches for key in batch] == sorted(set(history.keys))
    if max_events is not None:
        assert all(len(batch) <= max_events for batch in batches)


@pytest.mark.parametrize("in_total_order", [False, True])
def test_a_backlog_is_planned_in_batches_without_reading_it(in_total_order):
    history, start = backlog(24_000, 4000)
    inbox = Inbox()
    plan = planner(
        history, sharded=True, in_total_order=in_total_order, events_per_partition=1000, inbox=inbox
    )
    sizes: list[int] = []
    found: list[str] = []
    while len(found) < 18_000:
        history.events_sent = 0
        batch = plan.next_batch(start, 6000)
        assert history.events_sent <= (110 if sizes else SAMPLE_SIZE + 110)
        assert history.open_streams == 0  # the planner does not read ahead while the tasks read
        tasks = plan.tasks(batch)
        found += keys(history, tasks, inbox)
        sizes.append(len(found) - sum(sizes))
        start = batch.end
    assert (found if in_total_order else sorted(found)) == history.keys[: len(found)]
    assert len(tasks) == 6
    assert sizes[0] <= 6600
    assert all(5400 <= size <= 6600 for size in sizes[2:])
    plan.close()
    assert history.open_streams == 0


def test_batches_after_a_backlog_do_not_wait_for_more_events_of_a_steady_writer():
    class Writing(History):
        """A history to which an event is added every 20 ms, for which a reader of the end waits."""

        def watch(self, position: Position, shard: str | None = None) -> FakeStream:
            stream = super().watch(position, shard)
            following = stream.try_next

            def try_next() -> RawBSONDocument | None:
                if stream.index == len(self.events):
                    self.insert(len(self.events))
                return following()

            stream.try_next = try_next  # type: ignore[method-assign]
            return stream

    history = Writing()
    start: Position = AtTime(history.now)
    for number in range(2000):
        history.insert(number)
    plan = planner(history, sharded=True, clock=lambda: len(history.events) / 50)
    for number in range(6):
        before = len(history.events)
        batch = plan.next_batch(start, 200_000)
        tasks = plan.tasks(batch)
        if number >= 2:  # the backlog has been read
            assert len(history.events) - before <= 5
            assert len(tasks) == 1
        start = batch.end
    plan.close()


@pytest.mark.parametrize("available_now", [False, True])
def test_the_end_of_a_backlog_is_planned_without_reading_it(available_now):
    history, start = backlog(11_000, 1000)
    history.tick(seconds=60)
    inbox = Inbox()
    plan = planner(history, inbox=inbox)
    if available_now:
        plan.stop_at_present()
    found: list[str] = []
    sizes: list[int] = []
    while len(found) < len(history.keys):
        history.events_sent = 0
        batch = plan.next_batch(start, 6000)
        assert history.events_sent <= SAMPLE_SIZE + 110
        [task] = plan.tasks(batch)
        found += keys(history, [task], inbox)
        sizes.append(len(found) - sum(sizes))
        start = batch.end
    assert found == history.keys
    assert len(sizes) <= 4
    plan.close()


def test_the_last_batch_up_to_the_present_ends_at_it():
    """So `job at` finds a table that has reached any time before the run."""
    history = History()
    start: Position = AtTime(history.now)
    history.insert(1)
    history.tick(seconds=2)  # a write that the stream does not show
    history.pauses.add(1)  # the stream is idle after its event, and has not passed the present
    plan = planner(history)
    plan.stop_at_present()
    present = AtTime(history.now)
    batch = plan.next_batch(start, 10)
    assert batch.events == 1
    assert is_after(batch.end, present)
    plan.close()


def test_a_run_up_to_the_present_is_not_stalled_while_its_stream_advances():
    history = History()
    start: Position = AtTime(history.now)
    history.insert(1)
    plan = planner(history, clock=SteppingClock(step=1))
    plan._stop = AtTime(Timestamp(history.now.time, history.now.inc + 150))  # one a reply
    batch = plan.next_batch(start, 10)
    assert batch.events == 1
    assert batch.end == plan._stop
    plan.close()


def test_bytes_limit_a_batch_after_the_size_of_events_is_known():
    history, start = backlog(12_000, 12_000)
    inbox = Inbox()
    plan = planner(history, inbox=inbox, max_bytes_per_trigger=600_000)
    sizes = []
    for _ in range(4):
        batch = plan.next_batch(start, 50_000)
        sizes.append(sum(map(len, events_of(history, plan.tasks(batch), inbox))))
        start = batch.end
    assert all(540_000 <= size <= 660_000 for size in sizes[2:])


def test_events_of_one_cluster_time_are_in_one_batch():
    history = History()
    begin = history.now
    for number in range(12):
        history.insert(number, same_tick=number % 4 != 0)
    batches = drain(history, AtTime(begin), 2, sharded=True)
    assert [len(batch) for batch in batches] == [4, 4, 4]


def test_a_new_shard_is_read_from_its_joining():
    start, end = AtTime(Timestamp(100, 0)), AtTime(Timestamp(200, 0))
    old, new, later = (Timestamp(seconds, 7) for seconds in (50, 150, 250))
    tasks = divided(start, end, [], [Shard("c", later), Shard("b", new), Shard("a", old)])
    assert [(task.shard, task.start) for task in tasks] == [
        ("a", start),
        ("b", AtTime(Timestamp(150, 8))),
    ]
    assert tasks[1].before == ("a",)


def test_a_query_from_now_begins_with_an_empty_batch_that_fixes_the_start():
    history = History()
    history.insert(1)
    plan = planner(history)
    batch = plan.next_batch(FromNow(), 10)
    assert isinstance(batch.end, AtTime)
    assert plan.tasks(batch) == []
    history.insert(2)
    # A restart before that batch was committed plans the same batch and loses nothing.
    assert planner(history).tasks(EventRange(FromNow(), batch.end)) == []
    [read] = drain(history, batch.end, 10)
    assert read == history.keys[1:]


@pytest.mark.parametrize(
    ("started", "skew", "newest", "expected"),
    [
        (1000.9, 0.0, Timestamp(1500, 7), Timestamp(1000, 0)),
        (1000.9, 3.2, Timestamp(1500, 7), Timestamp(1004, 0)),
        (1000.9, -3.0, Timestamp(1500, 7), Timestamp(997, 0)),
        (2000.0, 0.0, Timestamp(1500, 7), Timestamp(1500, 8)),  # without writes since
        (2000.0, 0.0, Timestamp(1500, 2**32 - 1), Timestamp(1501, 0)),
    ],
)
def test_a_query_from_now_begins_at_its_start_by_the_servers_clock(
    started: float, skew: float, newest: Timestamp, expected: Timestamp
) -> None:
    client = Mock(with_retries=lambda call: call())
    client.clocks = lambda: Clocks(newest, time.time() + skew)
    plan = EventPlanner(client, StreamOptions("mongodb://127.0.0.1"), started_at=started)
    assert plan.next_batch(FromNow(), 10).end == AtTime(expected)


def test_an_idle_stream_keeps_its_offset_until_it_is_old():
    history = History()
    history.insert(1)
    plan = planner(history, idle_advance_seconds=60)
    start = plan.next_batch(AtTime(Timestamp(1, 1)), 10).end
    history.tick(seconds=59)
    assert plan.next_batch(start, 10).end == start
    assert plan.quiet_after == history.now
    assert plan.next_batch(start, 10, advances=True).end == AtTime(history.now)
    assert plan.next_batch(start, 10).end == start
    history.tick(seconds=1)
    batch = plan.next_batch(start, 10)
    assert is_after(batch.end, start)
    assert plan.tasks(batch) == []
    again = planner(history).tasks(EventRange(start, batch.end))
    assert keys(history, again) == []


def test_idle_ranges_are_not_read_again():
    history = History()
    start = AtTime(history.now)
    plan = planner(history)
    assert plan.next_batch(start, 10).end == start
    history.tick(seconds=20_000)
    assert plan.next_batch(start, 10).end == start
    event = history.insert(1)
    batch = plan.next_batch(start, 10)
    assert batch.quiet_until is not None
    assert batch.quiet_until.time >= event["clusterTime"].time - 1
    [task] = plan.tasks(batch)
    assert task.start == AtTime(batch.quiet_until)
    assert keys(history, [task]) == history.keys


@pytest.mark.parametrize("max_events", [1, 2, 10])
def test_an_invalidate_does_not_end_a_range(max_events):
    history = History()
    begin = history.now
    history.insert(1)
    history.drop(invalidate=True)
    history.insert(2)
    before, drop, _, after = history.keys
    batches = drain(history, AtTime(begin), max_events, sharded=True)
    assert [key for batch in batches for key in batch] == [before, drop, after]


def test_a_connection_lost_at_an_invalidate_is_replaced():
    history = History()
    begin = history.now
    history.drop(invalidate=True)
    history.insert(1)
    stream = EventStream(history.watch, AtTime(begin), sleep=lambda _: None)
    assert stream.next_run().keys
    history.failures = [lost_connection()]
    run = stream.next_run()
    assert [bson.decode(event)["operationType"] for event in run.events] == ["insert"]


def test_a_stalled_range_is_an_error():
    history = History()
    end = history.insert(1)["_id"]
    silent = History()
    silent.frozen = True
    stream = EventStream(silent.watch, AtTime(Timestamp(1, 1)), clock=SteppingClock(step=1))
    with pytest.raises(StreamError, match="has not advanced"):
        list(read_runs(stream, Token(end)))


def test_a_range_that_ends_where_the_stream_is_idle_needs_no_further_request():
    history = History()
    start = AtTime(history.now)
    history.insert(1)
    end = AtTime(history.tick(seconds=1))
    beyond = history.tick(seconds=1)
    asked = []

    class Stream(FakeStream):
        def try_reply(self, max_await: float | None = None) -> list[bytes]:
            events = super().try_reply()
            asked.append(len(events))
            self.resume_token = {"_data": high_water_mark(beyond)}
            return events

    stream = EventStream(lambda position: Stream(history, position), start)
    assert [key for run in read_runs(stream, end) for key in run.keys] == history.keys
    assert len(asked) == 1


def test_the_server_waits_less_for_a_further_event_than_for_a_first_one(
    monkeypatch: pytest.MonkeyPatch,
):
    history = History()
    start = AtTime(history.now)
    awaits = []

    class Stream(FakeStream):
        def try_reply(self, max_await: float | None = None) -> list[bytes]:
            awaits.append(max_await)
            return super().try_reply()

    monkeypatch.setattr(history, "watch", lambda position: Stream(history, position))
    plan = planner(history, clock=SteppingClock(FIRST_EVENT_TIMEOUT))
    assert plan.next_batch(start, 10).events == 0
    assert awaits == [FIRST_EVENT_TIMEOUT]
    history.insert(1)
    assert plan.next_batch(start, 10).events == 1
    assert awaits[1] == FIRST_EVENT_TIMEOUT
    assert awaits[2] is not None
    assert awaits[2] < FIRST_EVENT_TIMEOUT / 10


@pytest.mark.parametrize(("per_task", "sharded"), [(0, False), (500, True), (10, False)])
def test_a_range_of_unknown_size_is_divided_by_its_events(per_task: int, sharded: bool) -> None:
    """As `spark.read` reads changes: most events are in the last second of a long range."""
    history = History()
    start = AtTime(history.now)
    for number in range(3_000):
        if number < 300:
            history.tick(seconds=60)
        history.insert(number)
    batch = EventRange(start, Token(history.events[-1]["_id"]))
    tasks = planner(history, sharded=sharded, events_per_partition=per_task).tasks(batch)
    read = [keys(history, [each]) for each in tasks]
    assert sorted(key for each in read for key in each) == history.keys
    assert history.open_streams == 0
    # Each of them has as many events but the last one, until there would be too many.
    shards = SHARDS if sharded else 1
    sizes = {0: 3000, 500: 500, 10_000: 3000, 10: 80 if not sharded else 20}
    expected = [sizes[per_task]] * ((3000 - 1) // (sizes[per_task] * shards)) * shards
    assert list(map(len, read))[: len(expected)] == expected


def test_a_batch_of_an_earlier_scope_is_divided_without_the_event_before_it() -> None:
    """The job's new scope may lack that event, from which its stream then cannot be resumed."""

    class Narrower(History):
        def watch(self, position: Position, shard: str | None = None) -> FakeStream:
            if isinstance(position, Token):
                raise StreamError("the event at the checkpoint is not in it")
            return super().watch(position, shard)

    history = Narrower()
    before = Token(history.insert(0)["_id"])
    for number in range(1, 100):
        history.tick(seconds=1)
        history.insert(number)
    batch = EventRange(before, AtTime(history.tick(seconds=1)))
    tasks = planner(history, sharded=True, events_per_partition=20).tasks(batch)
    assert len(tasks) > SHARDS
    assert sorted(keys(history, tasks)) == history.keys[1:]


def test_a_lost_history_is_noticed_with_the_first_reply() -> None:
    """Servers open a cursor at any time; its first getMore fails if the oplog has rolled over."""
    history = History()
    start = AtTime(history.now)
    history.insert(1)

    def require_history(start: Position) -> None:
        with closing(EventStream(history.watch, start)) as stream:
            stream.require_history()

    require_history(start)
    require_history(Token(history.insert(2)["_id"]))  # nothing follows

    def watch(position: Position, shard: str | None = None) -> FakeStream:
        opened = History.watch(history, position, shard)
        history.failures = [history_lost()]
        return opened

    history.watch = watch  # type: ignore[method-assign, assignment]
    with pytest.raises(HistoryLostError):
        require_history(start)
    assert history.open_streams == 0


class BreakingHistory(History):
    """A history whose stream number `breaks` raises an error that no server sends."""

    def __init__(self, breaks: int) -> None:
        super().__init__()
        self.breaks = breaks

    def watch(self, position: Position, shard: str | None = None) -> FakeStream:
        stream = super().watch(position, shard)
        if self.opened == self.breaks:
            monkey = Mock(side_effect=InvalidBSON("cut off"))
            stream.try_reply = monkey  # type: ignore[method-assign]
        return stream


@pytest.mark.parametrize(
    "stage", ["the sample", "the probe of an end", "the rest of a transaction"]
)
def test_a_stream_that_breaks_is_closed(stage: str) -> None:
    history = BreakingHistory(1 if stage == "the sample" else 2)
    in_transaction = {"lsid": {"id": b"session"}, "txnNumber": 1}
    for number in range(3 * SAMPLE_SIZE):
        history.tick(seconds=1)
        event = history.insert(number)
        if stage == "the rest of a transaction":
            event |= in_transaction
    keeps = stage == "the rest of a transaction"
    plan = planner(history, keeps_transactions=keeps)
    with pytest.raises(InvalidBSON):
        plan.next_batch(AtTime(history.beginning), 5 if keeps else None)
    plan.close()
    assert history.open_streams == 0


def batches(history: History, max_events: int | None, *, keeps: bool = True) -> list[list[Any]]:
    """Return the transactions of the events of each batch, None for an event outside of any."""
    of_event = {event["_id"]["_data"]: event.get("txnNumber") for event in history.events}
    found = drain(
        history,
        AtTime(history.beginning),
        max_events,
        keeps_transactions=keeps,
        clock=SteppingClock(0.001),
    )
    return [[of_event[key] for key in batch] for batch in found]


def history_of(transactions: list[int | None]) -> History:
    """Return a history of inserts, one at each cluster time, in these transactions."""
    history = History()
    for number, transaction in enumerate(transactions):
        event = history.insert(number)
        if transaction is not None:
            event |= {"lsid": {"id": b"session"}, "txnNumber": transaction}
    return history


def test_a_transaction_whose_shards_wrote_it_a_tick_apart_is_in_one_batch() -> None:
    history = history_of([None, 1, 1, 1, 2, 2, None, None])
    assert batches(history, 2) == [[None, 1, 1, 1], [2, 2], [None, None]]
    assert batches(history, 2, keeps=False) == [[None, 1], [1, 1], [2, 2], [None, None]]


def test_the_rest_of_a_transaction_is_awaited_for_a_short_time() -> None:
    history = history_of([None, 1, 1, None])
    history.pauses = {2}  # the stream has nothing to return after the first half, once
    assert batches(history, 100) == [[None, 1, 1], [None]]
    history.pauses = {2}
    assert batches(history, 100, keeps=False) == [[None, 1], [1, None]]


def test_the_rest_of_a_transaction_is_awaited_after_an_event_in_fragments() -> None:
    history = history_of([None])
    history.insert_large(1, 3)  # whose first fragment alone names the transaction
    history.events[1] |= {"lsid": {"id": b"session"}, "txnNumber": 1}
    history.insert(2).update({"lsid": {"id": b"session"}, "txnNumber": 1})
    history.pauses = {4}
    assert batches(history, 100) == [[None, 1, None, None, 1]]


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([None, None, 1, 2, 3]), max_size=30),
    st.integers(1, 6),
    st.sets(st.integers(0, 30), max_size=4),
)
def test_no_end_lies_between_two_events_of_a_transaction(transactions, max_events, pauses) -> None:
    history = history_of(transactions)
    history.pauses = pauses
    found = batches(history, max_events)
    assert [each for batch in found for each in batch] == transactions
    for batch, following in pairwise(found):
        assert batch[-1] is None or batch[-1] != following[0]
