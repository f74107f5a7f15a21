"""A remote cursor on a scripted member: prefetching, pausing, hanging members, closing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import structlog.testing
from bson import Timestamp

from router.change_stream.progress_command import progress_command
from router.change_stream.resume_token import cluster_time_of
from router.streams.member_load import MemberLoad
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import RESUMABLE_LABEL, CommandError, ProtocolError
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_data
from shard_client.remote_cursor.progress_cursor import Probing
from shard_client.remote_cursor.remote_cursor import RemoteCursor
from shard_client.remote_cursor.remote_settings import RemoteSettings
from shard_client.wire.connection import Address, Connection
from shard_client.wire.connection_pool import ConnectionPool
from tests.doubles.scripted_member import ScriptedMember, event_token
from tests.harness.until import PATIENCE, until

SETTINGS = RemoteSettings(
    await_time=0.005,
    connect_timeout=0.3,
    reply_timeout=30.0,
    failure_timeout=1.0,
    close_timeout=0.3,
    backoff_first=0.005,
)


@dataclass
class Reader:
    """A cursor on a member and everything that it reports."""

    member: ScriptedMember
    settings: RemoteSettings = SETTINGS
    batches: list[CursorBatch] = field(default_factory=list)
    failures: list[CommandError] = field(default_factory=list)
    suspected: list[Address] = field(default_factory=list)
    asked_ahead: list[bool] = field(default_factory=list)
    connection: Connection | None = None
    stages: Sequence[dict[str, Any]] = ()
    fragments: bool = False
    sent: MemberLoad = field(default_factory=MemberLoad)
    costs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ClusterClock()
        self.pool = ConnectionPool()
        self.cursor = RemoteCursor(
            "s",
            dialer=self,
            opening=self.opening,
            on_batch=self.brought,
            on_failure=lambda error, _: self.failures.append(error),
            clock=self.clock,
            settings=self.settings,
            sent=self.sent,
            probing=Probing(
                opening=lambda pbrt: progress_command(*self.opening(pbrt), pbrt),
                fragments=self.fragments,
                on_cost=self.costs.append,
            ),
        )

    async def connect(self, timeout: float) -> Connection:
        address = ("127.0.0.1", self.member.port)
        self.connection = await self.pool.take(address, timeout, greet=True)
        return self.connection

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        self.connection = await self.pool.take(address, timeout)
        return self.connection

    def release(self, connection: Connection) -> None:
        self.pool.give_back(connection)

    def borrow(
        self, address: Address, timeout: float, *, greet: bool = False
    ) -> AbstractAsyncContextManager[Connection]:
        return self.pool.borrow(address, timeout, greet=greet)

    def suspect(self, address: Address) -> None:
        self.suspected.append(address)

    def brought(self, batch: CursorBatch) -> None:
        self.batches.append(batch)
        self.asked_ahead.append(self.connection is not None and self.connection.busy)

    def opening(self, pbrt: bytes | None) -> tuple[str, dict[str, Any]]:
        start: dict[str, Any] = {"startAtOperationTime": Timestamp(100, 1)}
        if pbrt is not None:
            start = {"resumeAfter": {"_data": token_data(pbrt).decode()}}
        pipeline = [{"$changeStream": start}, *self.stages]
        return "db", {"aggregate": 1, "pipeline": pipeline, "cursor": {}}

    def has(self, count: int) -> bool:
        return len(self.keys) == count

    @property
    def keys(self) -> list[bytes]:
        return [key for batch in self.batches for key, _ in batch.events]

    @property
    def promise(self) -> Timestamp:
        return cluster_time_of(token_data(self.batches[-1].pbrt))

    def promises(self, second: int) -> bool:
        return self.promise == Timestamp(second, 1)


@pytest.fixture
async def member() -> AsyncIterator[ScriptedMember]:
    member = await ScriptedMember("rs").start()
    member.noop(99)
    yield member
    await member.stop()


def keys(*seconds: int) -> list[bytes]:
    return [event_token(Timestamp(second, 1)).encode() for second in seconds]


async def test_batches_are_prefetched(member: ScriptedMember):
    reader = Reader(member)
    reader.cursor.start()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    member.insert(102)
    await until(lambda: reader.keys == keys(101, 102))
    assert reader.clock.time == Timestamp(102, 1)
    await reader.cursor.close()
    assert not member.cursors
    reader.pool.close()
    await until(lambda: not member.writers)
    assert not reader.failures


async def test_a_paused_cursor_sends_no_get_more(member: ScriptedMember):
    reader = Reader(member)
    reader.cursor.pause()
    reader.cursor.start()
    await until(lambda: reader.batches)
    member.insert(101)
    await asyncio.sleep(0.05)
    assert member.commands["getMore"] == 0
    reader.cursor.resume()
    await until(lambda: reader.keys == keys(101))
    reader.cursor.pause()
    await reader.cursor.close()
    assert not member.cursors


async def test_a_paused_cursor_has_no_connection(member: ScriptedMember):
    """Others use the connection meanwhile; the cursor continues on any connection to its member."""
    reader = Reader(member)
    reader.cursor.start()
    address = ("127.0.0.1", member.port)
    await until(lambda: member.commands["getMore"] > 1)
    assert reader.pool.counts[address] == (1, 0, 1)
    reader.cursor.pause()
    await until(lambda: reader.pool.counts[address] == (0, 1, 1))
    other = await reader.pool.take(address, 1.0)
    reader.cursor.resume()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    assert reader.connection is not other
    assert len(member.opened) == 1
    reader.pool.give_back(other)
    await reader.cursor.close()
    assert not member.cursors
    assert reader.pool.counts[address] == (0, 2, 2), "closing the cursor cuts no connection"


@pytest.fixture
def every_reply_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shard_client.remote_cursor.remote_cursor.LARGE_REPLY", 1)


@pytest.mark.usefixtures("every_reply_is_large")
async def test_the_next_get_more_is_sent_before_a_large_reply_is_parsed(member: ScriptedMember):
    reader = Reader(member)
    reader.cursor.start()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    reader.cursor.pause()
    member.insert(102)
    await until(lambda: reader.keys == keys(101, 102))
    await until(lambda: reader.connection is not None and not reader.connection.busy)
    brought = reader.asked_ahead
    assert brought[0] is False, "an opening's reply"
    assert brought[1] is True
    assert brought[-1] is False, "the reply in flight at the pause"
    asked = member.commands["getMore"]
    reader.cursor.resume()
    await until(lambda: member.commands["getMore"] > asked)
    await reader.cursor.close()
    assert not member.cursors
    reader.pool.close()
    await until(lambda: not member.writers)
    assert not reader.failures


@pytest.mark.usefixtures("every_reply_is_large")
async def test_no_get_more_follows_a_cursor_s_last_reply(member: ScriptedMember):
    reader = Reader(member)
    reader.cursor.start()
    await until(lambda: reader.batches)
    member.insert(101, operationType="invalidate")
    await until(lambda: reader.batches[-1].invalidated)
    assert reader.asked_ahead[-1] is False
    await reader.cursor.close()
    assert not reader.failures
    reader.pool.close()
    await until(lambda: not member.writers)


@pytest.mark.usefixtures("every_reply_is_large")
async def test_an_invalid_reply_ends_the_cursor_and_its_get_more_in_flight(
    member: ScriptedMember, monkeypatch: pytest.MonkeyPatch
):
    reader = Reader(member)
    reader.cursor.start()
    await until(lambda: reader.batches)

    def broken(body: bytes) -> CursorBatch:
        raise ProtocolError("an event has no resume token")

    monkeypatch.setattr("shard_client.remote_cursor.remote_cursor.slice_cursor_reply", broken)
    await until(lambda: reader.failures)
    assert "no resume token" in str(reader.failures[0])
    await reader.cursor.close()
    assert not member.cursors
    reader.pool.close()
    await until(lambda: not member.writers)


async def test_a_paused_cursor_closes_at_once(member: ScriptedMember):
    reader = Reader(member)
    reader.cursor.pause()
    reader.cursor.start()
    await until(lambda: reader.batches)
    async with asyncio.timeout(0.2):
        await reader.cursor.close()
    assert not member.cursors


async def test_events_arrive_once_despite_cuts(member: ScriptedMember):
    reader = Reader(member)
    reader.cursor.start()
    for second in range(101, 121):
        member.insert(second)
        if second % 4 == 0:
            member.cut()
        await asyncio.sleep(0.004)
    await until(lambda: len(reader.keys) >= 20)
    assert reader.keys == keys(*range(101, 121))
    await reader.cursor.close()
    assert not member.cursors
    assert not reader.failures


async def test_a_hanging_member_is_abandoned(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, reply_timeout=0.1))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] > 1)
    member.hang |= {"getMore", "hello"}
    await until(lambda: reader.suspected)
    member.hang.clear()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    await reader.cursor.close()


async def test_a_slow_member_is_not_abandoned(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, reply_timeout=0.05))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] > 1)
    member.hang.add("getMore")
    await until(lambda: member.commands["hello"] >= 3)
    assert reader.suspected == []
    assert reader.failures == []
    async with asyncio.timeout(PATIENCE):
        await reader.cursor.close()
    assert not member.cursors


async def test_a_promise_is_reported_while_a_getmore_waits(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_time=20.0))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    for number in range(5):
        member.noop(101 + 10 * number)
        assert reader.cursor.can_probe(0.1)
        reader.cursor.probe_progress(0.001)
        assert not reader.cursor.can_probe(0.1), "a probe is in progress"
        reader.cursor.probe_progress(0.001)
        await until(partial(reader.promises, 101 + 10 * number))
        member.insert(102 + 10 * number)
        await until(partial(reader.has, number + 1))
    assert reader.keys == keys(*range(102, 152, 10))
    assert len(member.opened) == 2
    assert not member.commands["killCursors"]
    assert not reader.cursor.can_probe(30)
    await reader.cursor.close()
    assert not member.cursors
    assert not reader.failures
    assert not reader.suspected


async def test_a_promise_beyond_an_event_waits_for_the_event(
    member: ScriptedMember,
):
    """Its promise lies beyond an event that the first cursor has not returned yet."""
    reader = Reader(member, replace(SETTINGS, await_time=20.0))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    waited_for, member._moved = member._moved, asyncio.Event()
    member.insert(110)
    member.noop(120)
    member._moved = waited_for
    heard = len(reader.batches)
    reader.cursor.probe_progress(0.001)
    await until(lambda: len(reader.batches) > heard)
    assert reader.keys == []
    assert reader.promise < Timestamp(110, 1)
    member.insert(130)
    await until(partial(reader.has, 2))
    assert reader.keys == keys(110, 130)
    reader.cursor.probe_progress(0.001)
    await until(lambda: reader.promise >= Timestamp(130, 1))
    await reader.cursor.close()
    assert not member.cursors


async def test_a_progress_cursor_ignores_random_filters(member: ScriptedMember):
    """A random filter passes different events each time, so the progress cursor omits it."""
    reader = Reader(
        member, replace(SETTINGS, await_time=20.0), stages=[{"$match": {"$sampleRate": 0.5}}]
    )
    drawn: list[int] = []

    def lets_through(cursor_id: int, pipeline: Sequence[dict[str, Any]]) -> bool:
        if any("$sampleRate" in stage.get("$match", {}) for stage in pipeline):
            drawn.append(cursor_id)
            return cursor_id == drawn[0]
        return True

    member.lets_through = lets_through
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    waited_for, member._moved = member._moved, asyncio.Event()
    member.insert(110)
    member.noop(120)
    member._moved = waited_for
    heard = len(reader.batches)
    reader.cursor.probe_progress(0.001)
    await until(lambda: len(reader.batches) > heard)
    assert reader.promise < Timestamp(110, 1), "the event at 110 has not been returned yet"
    member.insert(130)
    await until(partial(reader.has, 2))
    await reader.cursor.close()
    assert not member.cursors


async def test_a_promise_waits_for_all_fragments_of_an_event(member: ScriptedMember):
    """A fragment sorts after the whole event that the progress cursor returns."""
    reader = Reader(member, replace(SETTINGS, await_time=20.0), fragments=True)
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    member.insert(110)
    await until(partial(reader.has, 1))
    member.noop(120)
    heard = len(reader.batches)
    reader.cursor.probe_progress(0.001)
    await until(lambda: len(reader.batches) > heard)
    assert reader.promise == Timestamp(110, 1), "there may be more of the event's fragments"
    member.insert(130)
    await until(partial(reader.has, 2))
    assert reader.promise == Timestamp(130, 1)
    await reader.cursor.close()


async def test_a_probe_s_cost_is_the_member_s_time(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_time=20.0))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    reader.cursor.probe_progress(0.02)
    await until(lambda: len(reader.batches) == 2)
    member.slow["getMore"] = 0.2
    reader.cursor.probe_progress(0.001)
    await until(lambda: len(reader.batches) == 3)
    assert reader.costs[1] >= 0.19
    assert reader.costs[0] < reader.costs[1]
    assert (reader.sent.openings, reader.sent.get_mores) == (2, 3)
    await reader.cursor.close()


async def test_an_unused_progress_cursor_is_closed(member: ScriptedMember):
    reader = Reader(member)
    with patch("shard_client.remote_cursor.progress_cursor._UNUSED", 0.05):
        reader.cursor.start()
        await until(lambda: member.commands["getMore"])
        reader.cursor.probe_progress(0.001)
        await until(lambda: len(member.cursors) == 2)
        await until(lambda: len(member.cursors) == 1)
    member.insert(110)
    await until(partial(reader.has, 1))
    await reader.cursor.close()
    assert not reader.failures


async def test_an_abandoned_member_is_suspected_and_the_stream_continues(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_time=20.0))
    reader.cursor.start()
    member.insert(101)
    await until(partial(reader.has, 1))
    await until(lambda: member.commands["getMore"] == 2)
    reader.cursor.leave_member()
    assert reader.suspected == [("127.0.0.1", member.port)]
    member.insert(102)
    await until(partial(reader.has, 2))
    assert reader.keys == keys(101, 102)
    await reader.cursor.close()


async def test_a_first_cursor_that_is_behind_does_not_lower_the_promise(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_time=0.2))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    member.noop(150)
    reader.cursor.probe_progress(0.001)
    await until(partial(reader.promises, 150))
    member.cut()  # the getMore in flight is repeated after the promise
    member.insert(160)
    await until(partial(reader.has, 1))
    promises = [cluster_time_of(token_data(batch.pbrt)) for batch in reader.batches]
    assert promises == sorted(promises)
    await reader.cursor.close()
    assert not member.cursors


async def test_a_failed_progress_cursor_is_reopened(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_time=20.0))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    reader.cursor.probe_progress(0.001)
    await until(lambda: len(reader.batches) == 2)
    for code in (43, 237, 280):  # the last code would end the first cursor
        member.fail("getMore", code)
        reader.cursor.probe_progress(0.001)
        await until(partial(reader.cursor.can_probe, 0.1))
        member.noop(100 + code)
        reader.cursor.probe_progress(0.001)
        await until(partial(reader.promises, 100 + code))
    assert not member.failures["getMore"], "only the progress cursor failed"
    assert not reader.failures
    await reader.cursor.close()
    assert not member.cursors


async def test_a_disconnected_progress_cursor_is_replaced_at_once(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_time=20.0))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    before = set(member.writers)
    reader.cursor.probe_progress(0.001)
    await until(lambda: len(reader.batches) == 2)
    for writer in set(member.writers) - before:
        writer.transport.abort()
    member.noop(150)
    reader.cursor.probe_progress(0.001)
    await until(partial(reader.promises, 150))
    assert not reader.failures
    await reader.cursor.close()
    assert not member.cursors


async def test_a_progress_cursor_behind_the_first_is_replaced(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_time=20.0, batch_target_bytes=1000))
    reader.cursor.start()
    await until(lambda: member.commands["getMore"] == 1)
    reader.cursor.probe_progress(0.001)
    await until(lambda: len(reader.batches) == 2)
    for number in range(20):
        member.insert(101 + number)
        await until(partial(reader.has, number + 1))
    member.noop(200)
    reader.cursor.probe_progress(0.001)
    await until(partial(reader.promises, 200))
    assert len(member.opened) == 3
    assert len(member.cursors) == 2, "the previous progress cursor was killed"
    await reader.cursor.close()
    assert not member.cursors


async def test_a_fatal_failure_is_reported_once(member: ScriptedMember):
    reader = Reader(member)
    member.fail("getMore", 280)
    reader.cursor.start()
    await until(lambda: reader.failures)
    await reader.cursor.close()
    assert [error.code for error in reader.failures] == [280]


async def test_a_member_that_stays_unreachable_fails_the_cursor(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, failure_timeout=0.2))
    reader.cursor.start()
    await until(lambda: reader.batches)
    await member.stop()
    await until(lambda: reader.cursor.state == "failing")
    await until(lambda: reader.failures)
    assert reader.failures[0].code == 6
    assert RESUMABLE_LABEL in reader.failures[0].labels
    async with asyncio.timeout(PATIENCE):
        await reader.cursor.close()


async def test_paused_time_does_not_count_as_failure(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, failure_timeout=0.1))
    reader.cursor.start()
    await until(lambda: reader.batches)
    reader.cursor.pause()
    member.cut()
    await until(lambda: member.commands["aggregate"] > 1)
    await asyncio.sleep(0.15)  # longer than the failure timeout, which no event reports
    member.cut()
    reader.cursor.resume()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    assert not reader.failures
    await reader.cursor.close()


@pytest.mark.parametrize("code", [43, 202, 237, 10107])
async def test_a_lasting_failure_is_resumable_for_the_client(member: ScriptedMember, code: int):
    reader = Reader(member, replace(SETTINGS, failure_timeout=0.05))
    member.fail("getMore", code, times=1000)
    reader.cursor.start()
    await until(lambda: reader.failures)
    await reader.cursor.close()
    (failure,) = reader.failures
    assert (failure.code, failure.labels) == (code, {RESUMABLE_LABEL})


async def test_the_time_of_a_hang_counts_as_failure(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, reply_timeout=0.1, failure_timeout=0.15))
    reader.cursor.start()
    await until(lambda: reader.batches)
    begun = asyncio.get_running_loop().time()
    member.hang |= {"getMore", "hello", "isMaster"}
    await until(lambda: reader.failures)
    # The hang is noticed after 0.1 s to 0.15 s of 0.1 s, which leaves no time for another try.
    assert asyncio.get_running_loop().time() - begun < 0.15 + 0.1 + SETTINGS.connect_timeout
    await reader.cursor.close()


FRAME = 600
"""More bytes than any of the replies below."""


async def cut_everywhere(member: ScriptedMember, first: int, last: int) -> None:
    """Cut the connections after each of these numbers of bytes, with an event in between."""
    # Another failure may follow before a getMore has been answered.
    quick = replace(SETTINGS, backoff_first=0.001, backoff_max=0.002, failure_timeout=30.0)
    reader = Reader(member, quick)
    reader.cursor.start()
    await until(lambda: reader.batches)
    second = 101
    for place in range(first, last):
        member.cut_after = place
        member.insert(second)
        second += 1
        await until(lambda: member.cut_after is None)
    await until(lambda: reader.has(last - first))
    await reader.cursor.close()
    assert reader.keys == keys(*range(101, second))
    assert not reader.failures
    assert not [each for each in member.cursors.values() if each.read]


@pytest.mark.parametrize("eighth", range(8))
async def test_cuts_at_any_byte_lose_no_event(eighth: int):
    """The cut hits hello, opening and getMore replies alike."""
    member = await ScriptedMember("rs").start()
    member.noop(99)
    width = FRAME // 8
    await cut_everywhere(member, eighth * width, (eighth + 1) * width)
    await member.stop()


async def test_an_internal_error_is_reported_as_a_failure(member: ScriptedMember):
    reader = Reader(member)

    def broken(_: CursorBatch) -> None:
        raise RuntimeError("cannot take this")

    reader.cursor._on_batch = broken
    reader.cursor.start()
    await until(lambda: reader.failures)
    assert reader.failures[0].code == 1
    await reader.cursor.close()
    assert not member.cursors


async def test_closing_works_before_the_start_and_twice(member: ScriptedMember):
    reader = Reader(member)
    await reader.cursor.close()
    await reader.cursor.close()
    assert member.commands.total() == 0


async def test_an_outage_and_its_end_are_logged_once(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, backoff_first=0.001, backoff_max=0.002))
    with structlog.testing.capture_logs() as lines:
        reader.cursor.start()
        await until(lambda: reader.batches)
        member.fail("getMore", 189, times=20)
        await until(lambda: not member.failures["getMore"])
        member.insert(101)
        await until(lambda: reader.has(1))
    await reader.cursor.close()
    told = [line["event"] for line in lines if line["log_level"] in ("info", "warning")]
    assert told == ["remote cursor failed", "remote cursor goes on"]
