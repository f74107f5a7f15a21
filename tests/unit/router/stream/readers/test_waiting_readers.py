"""Filtered readers during a backlog: replies are few and full."""

import asyncio
from collections.abc import Mapping
from unittest.mock import Mock

import pytest
from bson import Timestamp

from router.filters.stream_filter import compile_filter
from router.stream.merge.merged_stream import MergedStream
from router.stream.readers import waiting_readers
from router.stream.readers.fan_out import FanOut
from router.stream.readers.log_reader import LogReader
from router.stream.readers.resume_point import starting_point
from router.stream.readers.waiting_readers import Waiter, WaitingReaders
from shard_client.bson.resume_token import first_key
from shard_client.errors import RESUMABLE_LABEL, CommandError
from shard_client.remote_cursor.cursor_reply import CursorBatch, KeyedToken
from tests.doubles.scripted_cluster import stream
from tests.doubles.scripted_streams import hwm
from tests.harness.until import PATIENCE
from tests.unit.router.made_tokens import data_of, event

START = Timestamp(10, 1)
EVENTS, EVERY = 6000, 100
ALL = {"$gte": 0}
"""A condition on the tenant that every event meets."""


class Backlog:
    """One shard's stream with several blocks of events; each tenant has every 100th event."""

    def __init__(self, size: int = 0, kept_bytes: int = 0) -> None:
        request = stream(None)
        self.stream = MergedStream(request, {"s0": "h:1"}, start_at=START, topology_from=START)
        self.fan_out = FanOut(self.stream, kept_bytes)
        self.readers = WaitingReaders(self.stream, self.fan_out)
        self.point = starting_point(request, START, 1)
        self.size = size

    def reader(self, tenant: int | Mapping[str, int]) -> LogReader:
        wanted = compile_filter([{"$match": {"fullDocument.tenant": tenant}}])
        return LogReader(self.fan_out.open(wanted, first_key(START)), self.point)

    def arrive(self, count: int = EVENTS) -> None:
        events = [
            event(
                data_of(11, 1, inc=number + 1),
                fullDocument={"tenant": number % EVERY, "filler": b"x" * self.size},
            )
            for number in range(count)
        ]
        size = sum(len(each) for _, each in events)
        for remote, queue in self.stream.merger.remotes.items():
            arrived = (events, size) if queue.target == "s0" else ([], 0)
            self.stream.batch_arrived(
                remote, CursorBatch(1, arrived[0], KeyedToken.of(hwm(20)), arrived[1])
            )

    def waiting(self, reader: LogReader) -> Waiter:
        """Let a reader wait; return what is done when it is woken."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self.readers.add(reader, waiter)
        self.readers.schedule_step()
        return waiter

    async def wait(self, *readers: LogReader) -> None:
        """Wait until the first one is woken."""
        waiters = [self.waiting(reader) for reader in readers]
        async with asyncio.timeout(PATIENCE):
            await waiters[0]
        for reader in readers:
            self.readers.remove(reader)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers with few events wait until the backlog's end, however long it takes."""
    monkeypatch.setattr(waiting_readers, "_LEAST_DELAY", PATIENCE)
    monkeypatch.setattr(waiting_readers, "_MOST_DELAY", PATIENCE)


@pytest.mark.usefixtures("patient")
async def test_a_reader_with_few_events_waits_for_more() -> None:
    backlog = Backlog()
    first, second = backlog.reader(1), backlog.reader(2)
    backlog.arrive()
    assert not backlog.readers.should_gather(second, None), "nothing is there"
    while second.view.log.end < 5:
        backlog.readers.step(asked=True)
        await asyncio.sleep(0)
    assert backlog.readers.should_gather(second, None)
    assert not backlog.readers.should_gather(second, 5), "its batch would be full"
    await backlog.wait(second, first)
    assert len(second.take(None).events) == EVENTS / EVERY


@pytest.mark.usefixtures("patient")
async def test_a_full_reader_does_not_wake_those_with_few_events() -> None:
    backlog = Backlog()
    # The first one gets all events, the second one every 100th.
    full = backlog.reader(ALL)
    few = backlog.reader(1)
    backlog.arrive()
    waiting = backlog.waiting(few)
    await backlog.wait(full)
    assert backlog.stream.merger.ready, "the backlog goes on"
    assert backlog.readers.should_gather(few, None)
    assert not waiting.done()
    async with asyncio.timeout(PATIENCE):
        await waiting
    assert len(few.take(None).events) == EVENTS / EVERY


async def test_a_woken_reader_reads_before_the_next_block() -> None:
    backlog = Backlog(size=1000, kept_bytes=1 << 20)
    reader = backlog.reader(ALL)
    backlog.arrive()
    got = 0
    while got < EVENTS:
        await backlog.wait(reader)
        assert not reader.lost, "nothing may be dropped before it can read"
        got += len(reader.take(None).events)
        assert reader.part is not None
        backlog.fan_out.forget(reader.part, reader.number)
    assert got == EVENTS


async def test_a_reader_may_use_what_others_leave() -> None:
    backlog = Backlog(size=1000, kept_bytes=16 * 1024 * 1024)
    reader = backlog.reader(ALL)
    for number in range(200):
        backlog.reader(EVERY + number)
    backlog.arrive()
    while backlog.stream.merger.ready or backlog.fan_out.behind:
        backlog.readers.step(asked=True)
        await asyncio.sleep(0)
    assert not reader.lost, "its events fit into the memory of all readers"
    got = 0
    while reader.prepare():
        got += len(reader.take(None).events)
    assert got == EVENTS


async def test_an_exception_in_a_step_ends_the_stream_of_readers_without_a_filter() -> None:
    backlog = Backlog()
    backlog.fan_out.step = Mock(side_effect=ValueError)  # type: ignore[method-assign]
    reader = LogReader(backlog.stream, backlog.point)
    waiting = backlog.waiting(reader)
    backlog.readers.step(asked=True)
    assert waiting.done(), "it would wait for events that no step passes on"
    with pytest.raises(CommandError) as failure:
        reader.take(None)
    assert RESUMABLE_LABEL in failure.value.labels
    assert isinstance(failure.value.__cause__, ValueError), "the stream logs the cause"
