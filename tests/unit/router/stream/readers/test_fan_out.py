"""The fan-out of one merged stream: steps of bounded time, and failures that concern few views."""

import time
from collections.abc import Sequence
from itertools import count
from typing import Any
from unittest.mock import Mock

import bson
import pytest

from router.filters.field_walk import MOST_WORK, Allowance
from router.filters.index import FilterIndex
from router.filters.stream_filter import EVERYTHING, StreamFilter, compile_filter
from router.stream.readers.fan_out import FanOut
from router.stream.readers.views import Namespace, PartialView, View
from shard_client.bson.resume_token import first_key
from shard_client.errors import RESUMABLE_LABEL
from shard_client.remote_cursor.cursor_reply import token_of
from tests.doubles.scripted_streams import PrivateStream, batch, hwm
from tests.unit.router.made_tokens import data_of, event
from tests.unit.router.stream.streams_by_hand import CONFIG, START, A, opened


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
        documents = [{"_id": n, "tenant": n % 2, **fields} for n in numbers]
        namespace = {"db": "db", "coll": "coll"}
        found = [
            event(data_of(11, 1, inc=each["_id"] + 1), fullDocument=each, ns=namespace)
            for each in documents
        ]
        self.stream.batch_arrived(A, batch(found, token_of(found[-1][1])))
        self.stream.batch_arrived(CONFIG, batch([], hwm(20)))
        while self.stream.release():
            pass

    def view(self, stream_filter: StreamFilter) -> PartialView:
        return self.fan_out.open(stream_filter, first_key(START))

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
    assert low_watermark
    assert not view.low_watermark
    assert view.high_water_mark is None
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


def test_a_filter_that_cannot_be_added_takes_no_events_from_later_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Reading(10)
    other = reading.view(tenant(0))
    with monkeypatch.context() as patch:
        patch.setattr(FilterIndex, "add", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            reading.view(tenant(1))
    later = reading.view(tenant(1))
    reading.pass_on()
    assert ids(later) == list(range(1, 10, 2))
    assert other.error is not None, "its index may be damaged"
    reading.fan_out.close(other)
    reading.fan_out.close(later)
    assert reading.fan_out.readers == reading.fan_out.held_bytes == 0


def test_a_filter_over_its_work_limit_ends_only_its_own_views() -> None:
    reading = Reading(10, many=[1] * (MOST_WORK + 1))
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
    assert not view.low_watermark


STEP = 0.001


def test_large_events_after_small_ones_do_not_stretch_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Reading(2000)
    view = reading.view(compile_filter([{"$match": {"fullDocument.a": 1}}]))
    now, real = 0.0, FilterIndex.route

    def route(index: FilterIndex[bytes], events: list[bytes]) -> object:
        """Take time for the bytes of events that meet an index; all else takes none."""
        nonlocal now
        now += 2e-9 * sum(map(len, events))
        return real(index, events)

    def clock() -> float:
        return now

    monkeypatch.setattr(FilterIndex, "route", route)
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
    real = Allowance.spend

    def take(allowance: Allowance, units: int) -> None:
        nonlocal looked
        looked += units
        real(allowance, units)

    monkeypatch.setattr(Allowance, "spend", take)
    most = 0
    while reading.fan_out.behind:
        looked = 0
        reading.fan_out.step(time.perf_counter, STEP)
        most = max(most, looked)
    assert most <= 8 * MOST_WORK


NAME = Namespace(b"db", b"coll")


def test_an_exception_at_a_namespace_s_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = opened(shards=1)
    fan_out = FanOut(stream, 1 << 30)
    view = fan_out.open(tenant(1), first_key(START), NAME)
    dropped = event(data_of(11, 1), operationType="drop", ns={"db": "db", "coll": "coll"})
    stream.batch_arrived(A, batch([dropped], hwm(20)))
    stream.batch_arrived(CONFIG, batch([], hwm(20)))
    assert stream.release()
    monkeypatch.setattr(FilterIndex, "route", Mock(side_effect=KeyError))
    fan_out.step(count().__next__, 1)
    assert view.error is not None, "its reader would wait for ever"


def test_a_failed_view_whose_scan_another_has_joined_is_forgotten() -> None:
    reading = Reading(1)
    fan_out = reading.fan_out
    greedy = compile_filter([{"$match": {"fullDocument.many": {"$gt": 5}}}])

    late = fan_out.open(EVERYTHING, first_key(START), Namespace(b"other", b"coll"))
    for number in range(1, 39):
        reading.arrive([number])
    # A client begins at the end, while the others are far behind.
    failing = fan_out.open(greedy, data_of(11, 1, inc=39).encode(), NAME)
    reading.arrive([39], many=[1] * (MOST_WORK + 1))
    reading.pass_on()
    assert failing.failure is not None
    assert late.failure is None
    for view in (failing, late):
        fan_out.close(view)
    shown = fan_out.describe()
    assert (shown["readers"], shown["filters"], shown["namespaces"]) == (0, 0, 0)
    reading.arrive([40])
    assert not fan_out.behind, "nobody reads"
