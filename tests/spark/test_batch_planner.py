"""The planner and the reading of ranges, against a made-up history."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.batch_planner import BatchPlanner
from spark_sink.errors import StreamError
from spark_sink.event_stream import EventStream, read_range
from spark_sink.positions import AtTime, FromNow, Position, Token, from_offset, to_offset
from tests.spark.history import History, history_lost, lost_connection


class Clock:
    """A clock that moves on by a step each time it is read."""

    def __init__(self, step: float = 0.01) -> None:
        self.time = 0.0
        self.step = step

    def __call__(self) -> float:
        self.time += self.step
        return self.time


def planner(history: History, **options: Any) -> BatchPlanner:
    return BatchPlanner(
        history.watch, lambda: history.now, lambda: AtTime(history.tick()), clock=Clock(), **options
    )


def keys(history: History, start: Position, end: Position) -> list[str]:
    assert isinstance(end, Token)
    stream = EventStream(history.watch, start, sleep=lambda _: None)
    found = [event["_id"]["_data"] for event in read_range(stream, end, clock=Clock())]
    stream.close()
    return found


def drain(
    history: History, start: Position, max_events: int | None, **options: Any
) -> list[list[str]]:
    """All batches up to the present, each planned, checkpointed as JSON and read."""
    plan = planner(history, **options)
    batches = []
    while True:
        end = from_offset(json.loads(json.dumps(to_offset(plan.next_end(start, max_events)))))
        if end == start:
            plan.close()
            return batches
        ranges = plan.ranges(start, end)
        batches.append([key for one in ranges for key in keys(history, one.start, one.end)])
        # A batch that is repeated after a restart knows nothing of how it was planned.
        again = planner(history).ranges(start, end)
        replayed = [key for one in again for key in keys(history, one.start, one.end)]
        assert replayed == batches[-1]
        start = end


@given(
    sizes=st.lists(st.integers(min_value=0, max_value=9), max_size=8),
    max_events=st.integers(min_value=1, max_value=7) | st.none(),
    events_per_range=st.integers(min_value=0, max_value=3),
)
def test_every_event_is_in_one_batch(sizes, max_events, events_per_range):
    history = History()
    begin = history.now
    for size in sizes:  # a drop seen by three shards has one token three times
        for number in range(size):
            history.insert(number)
        history.drop(shards=3)
    batches = drain(history, AtTime(begin), max_events, events_per_range=events_per_range)
    assert [key for batch in batches for key in batch] == sorted(set(history.keys))
    if max_events is not None:
        assert all(len(batch) <= max_events for batch in batches)
    assert history.open_streams == 0


def test_a_query_from_now_begins_with_an_empty_batch_that_pins_the_place():
    history = History()
    history.insert(1)
    plan = planner(history)
    end = plan.next_end(FromNow(), 10)
    assert isinstance(end, AtTime)
    assert plan.ranges(FromNow(), end) == ()
    history.insert(2)
    # A restart before that batch was committed plans nothing anew and loses nothing.
    assert planner(history).ranges(FromNow(), end) == ()
    [batch] = drain(history, end, 10)
    assert batch == history.keys[1:]


def test_a_quiet_stream_keeps_its_offset_until_it_has_become_old():
    history = History()
    history.insert(1)
    plan = planner(history, idle_advance=60)
    start = plan.next_end(AtTime(Timestamp(1, 1)), 10)
    history.tick(seconds=59)
    assert plan.next_end(start, 10) == start
    history.tick(seconds=1)
    end = plan.next_end(start, 10)
    assert isinstance(end, Token)
    assert end.is_high_water_mark
    assert plan.ranges(start, end) == ()
    assert keys(history, start, end) == []


def test_available_now_ends_at_the_present_of_its_beginning():
    history = History()
    begin = history.now
    for number in range(10):
        history.insert(number)
    plan = planner(history)
    plan.stop_at_present()
    for number in range(10, 20):
        history.insert(number)
    start: Position = AtTime(begin)
    found: list[str] = []
    while (end := plan.next_end(start, 4)) != start:
        found += keys(history, start, end)
        start = end
    assert found == history.keys[:10]
    plan.close()
    assert history.open_streams == 0


@pytest.mark.parametrize("max_events", [1, 2, 10])
def test_an_invalidate_is_read_over(max_events):
    history = History()
    begin = history.now
    history.insert(1)
    history.drop(invalidate=True)
    history.insert(2)
    before, drop, _, after = history.keys
    batches = drain(history, AtTime(begin), max_events)
    assert [key for batch in batches for key in batch] == [before, drop, after]


def test_a_connection_lost_at_an_invalidate_is_survived():
    history = History()
    begin = history.now
    history.drop(invalidate=True)
    history.insert(1)
    stream = EventStream(history.watch, AtTime(begin), sleep=lambda _: None)
    assert stream.next() is not None
    history.failures = [lost_connection()]
    event = stream.next()
    assert event is not None
    assert event["operationType"] == "insert"


def test_lost_connections_are_survived_where_they_were_lost():
    history = History()
    for number in range(7):
        history.insert(number)
    stream = EventStream(history.watch, AtTime(Timestamp(1, 1)), sleep=lambda _: None)
    found = []
    while (event := stream.next()) is not None:
        found.append(event["_id"]["_data"])
        history.failures = [lost_connection(), lost_connection()]
    assert found == history.keys
    stream.close()
    assert history.open_streams == 0


def test_a_router_that_stays_away_is_given_up_in_bounded_time():
    history = History()
    history.failures = [lost_connection() for _ in range(1000)]
    slept: list[float] = []
    stream = EventStream(
        history.watch, FromNow(), retry_for=30, clock=lambda: sum(slept), sleep=slept.append
    )
    with pytest.raises(StreamError, match=r"^gave up after 30 s: .*connection closed"):
        stream.next()
    assert 30 <= sum(slept) < 33


def test_a_position_that_fell_off_the_oplogs_is_said_so():
    history = History()
    history.failures = [history_lost()]
    with pytest.raises(StreamError, match=r"^history lost: .*no longer reach back") as caught:
        EventStream(history.watch, FromNow()).open()
    assert len(str(caught.value)) <= 500
    assert "new checkpointLocation" in str(caught.value)


def test_a_range_whose_end_never_comes_is_given_up():
    history = History()
    end = history.insert(1)["_id"]
    silent = History()
    silent.frozen = True
    stream = EventStream(silent.watch, AtTime(Timestamp(1, 1)))
    with pytest.raises(StreamError, match="has not moved"):
        list(read_range(stream, Token(end), clock=Clock(step=1)))


def test_an_end_before_its_start_is_refused():
    history = History()
    first, second = Token(history.insert(1)["_id"]), Token(history.insert(2)["_id"])
    with pytest.raises(StreamError, match="cannot end at"):
        planner(history).ranges(second, first)
