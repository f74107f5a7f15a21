"""A merged stream that resumes after a token, or ends with an invalidate."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from random import Random

import bson
import pytest
from bson.timestamp import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from router.stream.log_reader import Batch
from router.stream.remote_queue import ReopenRemote
from router.stream.views import View
from shard_client.bson.resume_token import TIME_DIGITS, ResumeToken, cluster_time_of, first_key
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_data, token_of
from tests.doubles.scripted_streams import Driver, Event, PrivateStream, Script, batch, hwm
from tests.unit.router.made_tokens import data_of, event, token_document
from tests.unit.router.stream.streams_by_hand import (
    CONFIG,
    END,
    A,
    B,
    arrive,
    at,
    feed,
    histories,
    make,
    opened,
    resumed_after,
    times,
)


def test_events_up_to_the_token_are_dropped_and_not_ready():
    stream = resumed_after(data_of(10, 5))
    feed(stream, at(10, 3), at(10, 5))
    assert not stream.ready
    arrive(stream, A, 51, upto=60)
    arrive(stream, B, upto=60)
    arrive(stream, CONFIG, upto=60)
    assert stream.ready
    assert times(stream.take(None).events) == [51]


def test_the_token_stays_the_high_water_mark_while_watermarks_are_below_it():
    data = data_of(10, 5)
    stream = resumed_after(data)
    assert stream.take(0).pbrt == token_document(data)


def test_a_stream_without_the_token_fails_at_its_next_event():
    stream = resumed_after(data_of(10, 5))
    feed(stream, at(10, 3), upto=20)
    assert stream.take(None).events == []
    feed(stream, at(21, 7), at(22, 8), upto=30)
    assert stream.ready
    for _ in range(2):
        with pytest.raises(CommandError) as caught:
            stream.take(None)
    assert caught.value.code == 280
    assert caught.value.message.endswith(f'not found. {{_data: "{data_of(21, 7)}"}}')
    assert caught.value.labels == {"NonResumableChangeStreamError"}


@pytest.mark.parametrize(("token", "shards"), [(1, 2), (2, 1)])
def test_tokens_of_another_version_are_found(token, shards):
    stream = make(options={"resumeAfter": {"_data": data_of(10, 5, version=token)}}, version=shards)
    for action in stream.start():
        stream.batch_arrived(action.remote, batch([], hwm(10, 1, shards)))
    assert stream.take(0).pbrt == token_document(data_of(10, 5, version=token))
    events = [at(10, number, version=shards) for number in (3, 5, 7)]
    events.append(at(11, 1, version=shards))
    stream.batch_arrived(A, batch(events, hwm(50, 0, shards)))
    for remote in (B, CONFIG):
        stream.batch_arrived(remote, batch([], hwm(50, 0, shards)))
    assert stream.take(None).events == [raw for _, raw in events[2:]]


def test_a_missing_token_of_another_version_is_fatal():
    stream = resumed_after(data_of(10, 5, version=2))
    feed(stream, at(10, 3), at(10, 7))
    with pytest.raises(CommandError, match="not found"):
        stream.take(None)


def test_a_version_2_token_is_compared_by_the_operations():
    """Version 2 orders the changes of one time by their types first: so they reached the client."""
    token = data_of(10, 5, version=2, operation="insert")
    stream = resumed_after(token)
    changes = [(3, "update"), (4, "delete"), (4, "insert"), (5, "insert"), (6, "delete")]
    events = [event(data_of(10, key), operationType=kind) for key, kind in changes]
    events.append(event(data_of(10, 7), operationType=None))
    feed(stream, *events)
    assert stream.take(None).events == [events[0][1], events[5][1]]


@settings(max_examples=60)
@given(histories(), st.randoms(use_true_random=False))
def test_any_history_can_be_cut_and_resumed(history, rnd: Random):
    by_shard, everything = history
    version = 2 if any(b"2B042C0100" in key for key, _ in everything) else 1
    end = hwm(1000, 0, version)
    scripts = {shard: Script(events, end, version=version) for shard, events in by_shard.items()}
    scripts["config"] = Script([], END)
    first = Driver(make(shards=len(by_shard), version=version), scripts, rnd, max_events=9).run()
    assert first.events == [raw for _, raw in everything]
    assert first.taken[-1].closed is False

    cut = rnd.randrange(len(first.taken))
    before = [raw for taken in first.taken[: cut + 1] for raw in taken.events]
    points = [first.taken[cut].pbrt]
    if before:
        points.append(token_of(before[-1]))
    for point in points:
        options = {"resumeAfter": bson.decode(point)}
        stream = make(shards=len(by_shard), options=options, version=version)
        second = Driver(stream, scripts, rnd, max_events=9).run()
        assert before + second.events == first.events


def invalidated(
    stream: PrivateStream, remote: int, time: int, *, shown: bool = True
) -> tuple[list, bytes]:
    """Deliver a dropped collection's last batch: a drop, an invalidate, and cursor id 0."""
    drop, end = at(time, 0), at(time, 0, invalidate=True)
    events = [drop, end] if shown else [drop]
    token = token_of(end[1])
    return stream.batch_arrived(remote, batch(events, token, invalidated=True)), token


def test_an_invalidate_closes_the_stream_after_all_ready_events():
    stream = opened(target="c")
    arrive(stream, CONFIG, upto=99)
    actions, token = invalidated(stream, A, 20)
    assert actions == []
    assert not stream.ready
    arrive(stream, B, 15, 20, 25, upto=30)
    taken = stream.take(None)
    assert times(taken.events) == [15, 20, 20, 20]
    assert (taken.pbrt, taken.closed) == (token, False)
    assert stream.ready
    assert stream.waiting_for is None
    taken = stream.take(None)
    assert (taken.events, taken.pbrt, taken.closed) == ([], token, True)


def test_equal_invalidates_of_several_shards_are_all_delivered():
    stream = opened(target="c")
    arrive(stream, CONFIG, upto=99)
    invalidated(stream, A, 20)
    assert not stream.ready
    _, token = invalidated(stream, B, 20)
    taken = stream.take(3)
    assert len(taken.events) == 3
    assert not taken.closed
    assert len(stream.take(None).events) == 1
    assert stream.take(None) == type(taken)([], 0, token, closed=True)


def test_a_filtered_invalidate_still_closes_the_stream():
    stream = opened(target="c")
    arrive(stream, CONFIG, upto=99)
    arrive(stream, B, upto=99)
    _, token = invalidated(stream, A, 20, shown=False)
    assert times(stream.take(None).events) == [20]
    taken = stream.take(None)
    assert (taken.events, taken.pbrt, taken.closed) == ([], token, True)


@pytest.mark.parametrize("shown", [True, False])
def test_starting_after_an_invalidate_skips_each_shard_s_first(shown):
    data = data_of(10, 0, invalidate=True)
    stream = resumed_after(data, how="startAfter", target="c")
    arrive(stream, CONFIG, upto=99)
    actions, token = invalidated(stream, A, 10, shown=shown)
    assert actions == [ReopenRemote(A, token)]
    assert token == token_document(data)
    assert stream.batch_arrived(A, batch([], token)) == []
    arrive(stream, A, 12, upto=40)
    # The other shard dropped the collection later; its invalidate does not end the stream again.
    actions, later = invalidated(stream, B, 20, shown=shown)
    assert actions == [ReopenRemote(B, later)]
    taken = stream.take(None)
    stream.batch_arrived(B, batch([], later))
    # No token may point to an invalidate that was not delivered.
    assert taken.pbrt == stream.take(None).pbrt == token_of(taken.events[-1])
    arrive(stream, B, upto=40)
    assert stream.take(None).pbrt == hwm(40)
    assert (times(taken.events), taken.closed) == ([12, 20], False)
    assert bson.decode(taken.events[-1])["_id"]["_data"] == data_of(20, 0)
    # The shard's next invalidate ends it.
    invalidated(stream, A, 50)
    arrive(stream, B, upto=60)
    assert times(stream.take(None).events) == [50, 50]
    assert stream.take(None).closed


def is_end(event: Event) -> bool:
    return ResumeToken.decode(event[0].decode()).from_invalidate


@dataclass
class Incarnations(Script):
    """A shard whose collection is dropped again and again: each reading ends at an invalidate.

    A filter leaves out the events that are not ``shown``.
    """

    shown: Callable[[Event], bool] = lambda _: True

    def batches(self, start_at: Timestamp, rnd: Random) -> deque[CursorBatch]:
        return self.beyond(first_key(start_at)).batches(start_at, rnd)

    def beyond(self, after: bytes) -> Script:
        found = [event for event in self.events if event[0] > after]
        end = next((number for number, event in enumerate(found) if is_end(event)), None)
        shown = list(filter(self.shown, found if end is None else found[: end + 1]))
        last = self.last_pbrt if end is None else token_of(found[end][1])
        return Script(shown, last, invalidated=end is not None)

    def invalidates(self) -> tuple[list[Event], list[Event]]:
        """Return the invalidate that a stream skips, and those that end it."""
        ends = list(filter(is_end, self.events))
        first = next((each for each in self.events if self.shown(each) or is_end(each)), None)
        skipped = [each for each in ends[:1] if first and time_of(first) == time_of(each)]
        return skipped, ends[len(skipped) :]


def time_of(event: Event) -> bytes:
    return event[0][:TIME_DIGITS]


class MovingDriver(Driver):
    """Moves the reader to a stream that is opened where it is, again and again."""

    stream: PrivateStream

    def take(self) -> Batch:
        taken = super().take()
        if not taken.closed and self.rnd.random() < 0.4:
            reader = self.stream.log_reader
            self.stream = make(
                options={"startAtOperationTime": cluster_time_of(reader.needs)},
                target="c",
                shards=len(self.scripts) - 1,
                spans=reader.needs_spans,
            )
            reader.continue_on(View(self.stream))
            self.stream.log_reader = reader
            self.pending.clear()
            self.act(self.stream.start())
        return taken


@settings(max_examples=150)
@given(
    st.lists(st.dictionaries(st.integers(11, 14), st.booleans()), min_size=1, max_size=3),
    st.sampled_from([lambda _: True, lambda _: False, lambda event: not is_end(event)]),
    st.sampled_from([Driver, MovingDriver]),
    st.randoms(use_true_random=False),
)
def test_each_shard_skips_one_invalidate_wherever_the_client_moves(
    drops: list[dict[int, bool]], shown: Callable[[Event], bool], driver: type[Driver], rnd: Random
) -> None:
    """``drops`` tells for each shard at which times it has a drop (true) or an insert."""
    after = at(10, 0, invalidate=True)
    drops[0][10] = True
    shards: dict[str, Incarnations] = {}
    for number, times_of in enumerate(drops):
        events = [at(time, 0 if drop else number + 1) for time, drop in times_of.items()]
        events += [at(time, 0, invalidate=True) for time, drop in times_of.items() if drop]
        shards[f"shard{number}"] = Incarnations(sorted(events), END, shown=shown)
    skipped, ends = zip(*(each.invalidates() for each in shards.values()), strict=True)
    end = min([token_data(END), *(key for each in ends for key, _ in each)])
    everything = [each for shard in shards.values() for each in filter(shown, shard.events)]
    for each in filter(shown, chain.from_iterable(skipped)):
        everything.remove(each)

    stream = make(
        options={"startAfter": bson.decode(token_of(after[1]))}, target="c", shards=len(drops)
    )
    scripts = {**shards, "config": Script([], END)}
    run = driver(
        stream, scripts, rnd, lambda shard, token: shards[shard].beyond(token_data(token))
    ).run()
    assert run.events == [raw for key, raw in sorted(everything) if after[0] < key <= end]
    assert token_data(run.taken[-1].pbrt) == end
    assert run.taken[-1].closed is (end != token_data(END))
    # No token points to an invalidate that was not delivered.
    tokens = {token_data(taken.pbrt) for taken in run.taken}
    assert not tokens & {key for each in skipped for key, _ in each} - {after[0], end}


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("ends", [A, B])
@pytest.mark.parametrize("first", [A, B])
def test_one_token_may_end_one_shard_s_stream_and_not_the_other_s(ends, first, shown):
    """A collection of one shard was dropped and replaced by one of two shards."""
    data = data_of(10, 0, invalidate=True)
    stream = resumed_after(data, how="startAfter", target="c")
    arrive(stream, CONFIG, upto=99)
    invalidated(stream, ends, 10, shown=shown)
    for remote in (first, A + B - first):
        actions, token = invalidated(stream, remote, 20, shown=shown)
        assert actions == ([] if remote == ends else [ReopenRemote(remote, token)])
    assert times(stream.take(None).events) == [20] * (3 if shown else 2)
    taken = stream.take(None)
    assert (taken.events, taken.pbrt, taken.closed) == ([], token, True)


def test_starting_after_a_missing_invalidate_is_fatal():
    stream = resumed_after(data_of(10, 0, invalidate=True), how="startAfter", target="c")
    feed(stream, at(12))
    with pytest.raises(CommandError) as caught:
        stream.take(None)
    assert caught.value.code == 280


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_reader_that_moves_with_buffered_events_gets_each_once(taken: int):
    events = [at(10, number) for number in (3, 5, 6, 7, 8)] + [at(11), at(12)]
    first, second = resumed_after(data_of(10, 5)), resumed_after(data_of(10, 5))
    feed(first, *events)
    feed(second, *events)
    reader = first.log_reader
    got = reader.take(taken).events
    assert len(got) == taken
    reader.continue_on(View(second))
    got += reader.take(None).events
    assert got == [raw for _, raw in events[2:]]
