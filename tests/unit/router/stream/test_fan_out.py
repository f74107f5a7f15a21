"""The fan-out of one merged stream: steps of bounded time, and failures that concern few views."""

import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import bson
import pytest

from router.filters import fields
from router.filters.fields import MOST_WORK, Allowance
from router.filters.index import FilterIndex
from router.filters.stream_filter import EVERYTHING, StreamFilter, compile_filter
from router.stream.fan_out import FanOut
from router.stream.views import View
from shard_client.bson.resume_token import first_key
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.remote_cursor.cursor_reply import token_of
from tests.doubles.scripted_streams import PrivateStream, batch, hwm
from tests.unit.router.made_tokens import data_of, event
from tests.unit.router.stream.streams_by_hand import CONFIG, START, A, make, opened


def tenant(number: int) -> StreamFilter:
    return compile_filter([{"$match": {"fullDocument.tenant": number}}])


class Reading:
    """A stream with events of two tenants in turn, and views of it."""

    def __init__(self, events: int, **fields: Any) -> None:
        self.stream: PrivateStream = opened(shards=1)
        self.stream.keep_bytes = 1 << 30
        self.fan_out = FanOut(self.stream, 1 << 30)
        self.clock = count().__next__
        self.arrive(range(events), **fields)

    def arrive(self, numbers: Sequence[int], **fields: Any) -> None:
        found = [
            event(data_of(11, 1, inc=n + 1), fullDocument={"_id": n, "tenant": n % 2, **fields})
            for n in numbers
        ]
        self.stream.batch_arrived(A, batch(found, token_of(found[-1][1])))
        self.stream.batch_arrived(CONFIG, batch([], hwm(20)))
        while self.stream.release():
            pass

    def view(self, stream_filter: StreamFilter, after: bytes = first_key(START)) -> View:
        return self.fan_out.open(stream_filter, after)

    def step(self) -> None:
        """Pass one part of the events on."""
        self.fan_out.step(self.clock, 1)

    def pass_on(self) -> None:
        while self.fan_out.behind:
            self.step()


def ids(view: View) -> list[int]:
    found: list[int] = []
    while len(found) < view.log.end:
        block = view.log.rest_of_block(len(found))
        found += [bson.decode(raw)["fullDocument"]["_id"] for raw in block]
    return found


def test_a_step_passes_on_a_part_and_advances_the_watermark_that_far() -> None:
    reading = Reading(100)
    view = reading.view(tenant(1))
    reading.step()
    got = ids(view)
    assert got == list(range(1, got[-1] + 1, 2))
    assert got[-1] < 99
    low_watermark = view.low_watermark
    assert low_watermark is not None
    assert low_watermark < data_of(11, 1, inc=100).encode()
    mark = view.high_water_mark
    assert mark is not None
    assert mark.key < data_of(11, 1, inc=got[-1] + 1).encode()
    reading.pass_on()
    assert ids(view) == list(range(1, 100, 2))


def test_events_with_equal_tokens_stay_together() -> None:
    reading = Reading(1)
    same = [event(data_of(12, 1), fullDocument={"_id": n, "tenant": 1}) for n in range(40)]
    reading.stream.batch_arrived(A, batch(same, hwm(15)))
    while reading.stream.release():
        pass
    view = reading.view(EVERYTHING)
    reading.step()
    assert len(ids(view)) == 41


def test_a_view_that_is_opened_further_back_catches_up_without_delaying_others() -> None:
    reading = Reading(100)
    early = reading.view(tenant(1))
    reading.pass_on()
    late = reading.view(tenant(0))
    reading.arrive(range(100, 120))
    for _ in range(4):
        reading.step()
    assert ids(early)[-1] > 99, "each second part is for those that are ahead"
    assert 0 < len(ids(late)) < 50
    reading.pass_on()
    assert ids(early) == list(range(1, 120, 2))
    assert ids(late) == list(range(0, 120, 2))
    assert early.position is late.position


def test_views_of_one_position_share_the_index() -> None:
    reading = Reading(10)
    views = [reading.view(tenant(number)) for number in (0, 1, 1)]
    assert reading.fan_out.describe()["filters"] == 2
    assert len({view.position for view in views}) == 1
    for view in views:
        reading.fan_out.close(view)
    assert reading.fan_out.readers == reading.fan_out.describe()["filters"] == 0


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), ArithmeticError()])
def test_an_exception_ends_the_views_without_a_watermark(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(10)
    view = reading.view(tenant(1))
    reading.pass_on()
    low_watermark = view.low_watermark

    def fail(*args: Any) -> None:
        raise error

    reading.arrive(range(10, 20))
    told: list[View] = []
    view.on_events = lambda: told.append(view)
    with monkeypatch.context() as patch:
        patch.setattr(FilterIndex, "route", fail)
        reading.pass_on()
    assert told == [view]
    assert low_watermark is not None
    assert view.low_watermark is view.high_water_mark is None
    assert view.error is not None
    assert view.error.__cause__ is error
    assert RESUMABLE_LABEL not in view.error.labels, "the client's own stream may not fail"
    # Those that come later read the same stream.
    later = reading.view(tenant(1))
    reading.pass_on()
    assert ids(later) == list(range(1, 20, 2))
    assert reading.stream.error is None
    reading.fan_out.close(view)
    reading.fan_out.close(later)
    assert reading.fan_out.readers == reading.fan_out.held_bytes == 0


def test_a_filter_over_its_work_limit_ends_only_its_own_views() -> None:
    reading = Reading(10, many=[1] * (fields.MOST_WORK + 1))
    plain = reading.view(tenant(1))
    greedy = reading.view(compile_filter([{"$match": {"fullDocument.many": {"$gt": 5}}}]))
    projecting = reading.view(compile_filter([{"$project": {"fullDocument.many.a": 1}}]))
    reading.pass_on()
    assert greedy.error is not None
    assert greedy.error.code == 365
    assert projecting.error is not None
    assert plain.error is None
    assert ids(plain) == list(range(1, 10, 2))


def test_views_that_the_log_has_left_behind_fail() -> None:
    reading = Reading(5000)
    view = reading.view(tenant(1))
    reading.step()
    reading.stream.log.trim(0)
    reading.pass_on()
    assert view.error is not None
    assert view.low_watermark is None


def test_an_exception_in_the_merge_ends_the_stream_without_a_high_water_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = make(shards=1)
    for action in stream.start():
        stream.batch_arrived(action.remote, batch([], hwm(10, 1)))
    reader = stream.log_reader
    kept = reader.take(None).pbrt
    stream.batch_arrived(A, batch([event(data_of(11, 1), fullDocument={})], hwm(20)))
    stream.batch_arrived(CONFIG, batch([], hwm(20)))

    def fail(*args: Any) -> None:
        raise KeyError("x")

    with monkeypatch.context() as patch:
        patch.setattr(stream.log, "append", fail)
        assert reader.is_ready()
    for _ in range(2):
        with pytest.raises(CommandError) as caught:
            reader.take(None)
        assert RESUMABLE_LABEL in caught.value.labels
    assert stream.high_water_mark is stream.low_watermark is None
    assert reader.high_water_mark == kept


STEP = 0.001


class Costly:
    """A clock of work: bytes of events that meet an index take their time, all else takes none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_byte: float) -> None:
        self.now = 0.0
        real = FilterIndex.route

        def route(index: FilterIndex[bytes], events: list[bytes]) -> object:
            self.now += seconds_per_byte * sum(map(len, events))
            return real(index, events)

        monkeypatch.setattr(FilterIndex, "route", route)

    def __call__(self) -> float:
        return self.now


def test_large_events_after_small_ones_do_not_stretch_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Reading(2000)
    view = reading.view(compile_filter([{"$match": {"fullDocument.a": 1}}]))
    clock = Costly(monkeypatch, 2e-9)
    while reading.fan_out.behind:
        reading.fan_out.step(clock, STEP)
    reading.arrive(range(2000, 2300), a=[0] * 2000)  # 40 µs each, by this clock
    longest = 0.0
    while reading.fan_out.behind:
        began = clock()
        reading.fan_out.step(clock, STEP)
        longest = max(longest, clock() - began)
    assert view.failure is None
    assert longest < 3 * STEP


def projecting(number: int) -> StreamFilter:
    return compile_filter(
        [
            {"$match": {"fullDocument.tenant": number % 2}},
            {"$project": {f"fullDocument.a.x{number}": 1}},
        ]
    )


def test_many_projections_of_one_event_do_not_stretch_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One user may have many cursors with equal filters and different projections."""
    reading = Reading(4, a=[{"y": 1}] * (MOST_WORK // 3))
    for number in range(60):
        reading.view(projecting(number))
    looked = 0
    real = Allowance.take

    def take(allowance: Allowance, units: int) -> None:
        nonlocal looked
        looked += units
        real(allowance, units)

    monkeypatch.setattr(Allowance, "take", take)
    most = 0
    while reading.fan_out.behind:
        looked = 0
        reading.fan_out.step(time.perf_counter, STEP)
        most = max(most, looked)
    assert most <= 8 * MOST_WORK
