"""A remote cursor on a scripted member: reading, failures, its progress cursor, its end."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
import structlog.testing
from bson import Int64, Timestamp

from shard_client.errors import CommandError, ErrorCode, NetworkError, ProtocolError
from shard_client.remote_cursor.cursor_reaper import KILL_TASK, CursorReaper
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.remote_cursor.open_cursor import OpenCursor
from shard_client.wire.connection import Connection
from shard_client.wire.connection_pool import PoolLimits
from tests.doubles.scripted_member import ScriptedMember, invalidate
from tests.harness.until import PATIENCE, until
from tests.unit.shard_client.remote_cursor.reader import SETTINGS, Reader, keys

EVERY_REPLY_IS_LARGE = replace(SETTINGS, large_reply_bytes=1)


async def test_a_paused_cursor_has_no_connection(member: ScriptedMember):
    """Other users may take the connection; the cursor resumes on any connection to its member."""
    reader = Reader(member)
    reader.start()
    address = ("127.0.0.1", member.port)
    await until(lambda: member.commands["getMore"] > 1)
    assert reader.pool.counts[address] == (1, 0, 1)
    reader.cursor.pause()
    await until(lambda: reader.pool.counts[address] == (0, 1, 1))
    other = await reader.pool.take(address, PATIENCE)
    reader.cursor.resume()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    assert reader.connection is not other
    assert len(member.opened) == 1
    reader.pool.give_back(other)
    await reader.close()
    assert reader.pool.counts[address] == (0, 2, 2), "closing the cursor cuts no connection"


async def test_the_next_get_more_is_sent_before_a_large_reply_is_parsed(member: ScriptedMember):
    reader = Reader(member, EVERY_REPLY_IS_LARGE)
    reader.start()
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
    await reader.close()
    reader.pool.close()
    await until(lambda: not member.writers)
    assert not reader.failures


async def test_a_final_failure_to_connect_ends_the_cursor(
    member: ScriptedMember, monkeypatch: pytest.MonkeyPatch
):
    """Such as that of a shard that is not found, or of a server of another kind."""
    reader = Reader(member)

    async def connect(timeout: float) -> Connection:
        raise CommandError(ErrorCode.ShardNotFound, "planted")

    monkeypatch.setattr(reader, "connect", connect)
    await reader.read()
    assert [failure.code for failure in reader.failures] == [ErrorCode.ShardNotFound]
    await reader.close()


async def test_an_invalid_reply_ends_the_cursor_and_its_get_more_in_flight(
    member: ScriptedMember, monkeypatch: pytest.MonkeyPatch
):
    reader = Reader(member, EVERY_REPLY_IS_LARGE)
    reader.start()
    await until(lambda: reader.batches)

    def broken(batch: CursorBatch) -> None:
        raise ProtocolError("an event has no resume token")

    monkeypatch.setattr(CursorBatch, "split", broken)
    await until(lambda: reader.failures)
    assert "no resume token" in str(reader.failures[0])
    await reader.close()
    reader.pool.close()
    await until(lambda: not member.writers)


@pytest.mark.parametrize("ahead", [False, True])
async def test_an_invalidate_that_fills_its_reply_ends_the_cursor(
    member: ScriptedMember, ahead: bool
):
    """mongod says so only in the next reply, which may be lost; it may have been asked for."""
    large = 1 if ahead else SETTINGS.large_reply_bytes
    reader = Reader(member, replace(SETTINGS, batch_target_bytes=1, large_reply_bytes=large))
    reader.start()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    member.insert(102)  # the getMore after its batch asks for one event
    await until(lambda: reader.keys == keys(101, 102))
    key = invalidate(member, 103)
    await until(lambda: reader.batches[-1].invalidated)
    assert (reader.batches[-1].cursor_id, reader.keys[-1]) == (0, key.encode())
    assert reader.cursor.status == "ended"
    await until(lambda: not member.cursors)
    connection = reader.connection
    assert connection is not None
    await reader.close()
    assert connection.closed == ahead, "with a request in flight, it serves nobody else"


@pytest.mark.parametrize("hello", ["is answered", "finds all brief uses taken", "is refused"])
async def test_a_slow_member_is_not_abandoned_for_any_hello(member: ScriptedMember, hello: str):
    reader = Reader(member, replace(SETTINGS, reply_timeout=0.3, close_timeout=4.0))
    reader.start()
    await until(lambda: member.commands["getMore"] > 1)
    async with AsyncExitStack() as probes:
        for _ in range(0 if hello == "is answered" else PoolLimits().most_brief):
            address = ("127.0.0.1", member.port)
            await probes.enter_async_context(reader.pool.borrow(address, PATIENCE))
        sent = member.commands["hello"]
        if hello == "is refused":
            member.failures["hello"] = [{"ok": 0.0, "code": 11600, "errmsg": "shutting down"}]
        member.hang.add("getMore")
        await until(lambda: member.commands["hello"] >= sent + 2)
    assert reader.sent.openings == 1
    assert reader.distrusted == reader.failures == []
    member.hang.clear()
    async with asyncio.timeout(PATIENCE):
        await reader.close()


async def test_paused_time_does_not_count_as_failure(
    member: ScriptedMember, monkeypatch: pytest.MonkeyPatch
):
    reader = Reader(member)
    reader.start()
    await until(lambda: reader.batches)
    reader.cursor.pause()
    member.cut()
    await until(lambda: member.commands["aggregate"] > 1)
    await until(lambda: reader.cursor.status == "paused")
    assert reader.cursor.failing_for is None, "it is open again"
    loop = asyncio.get_running_loop()
    later = loop.time() + 2 * SETTINGS.failure_timeout - time.monotonic()
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + later)
    member.cut()
    reader.cursor.resume()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    assert not reader.failures
    await reader.cursor.close()


async def test_a_cursor_that_is_closed_as_it_is_opened_is_opened_again(member: ScriptedMember):
    reader = Reader(member)
    closed = {"id": Int64(0), "ns": "db.$cmd.aggregate", "firstBatch": []}
    member.failures["aggregate"] = [{"ok": 1.0, "cursor": closed}]
    reader.start()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    assert member.commands["aggregate"] == 2
    await reader.close()
    assert not reader.failures


async def test_an_outage_and_its_end_are_logged_once(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, backoff_first=0.001, backoff_max=0.002))
    with structlog.testing.capture_logs() as lines:
        reader.start()
        await until(lambda: reader.batches)
        member.fail("getMore", 189, times=20)
        await until(lambda: not member.failures["getMore"])
        member.insert(101)
        await until(lambda: reader.has(1))
    await reader.cursor.close()
    told = [line["event"] for line in lines if line["log_level"] in ("info", "warning")]
    assert told == ["remote cursor failed", "remote cursor resumed"]


@pytest.mark.parametrize("last", [189, ErrorCode.Unauthorized])
async def test_an_outage_ends_with_its_cursor(member: ScriptedMember, last: int):
    reader = Reader(member, replace(SETTINGS, failure_timeout=0.0 if last == 189 else PATIENCE))
    reader.start()
    await until(lambda: reader.batches)
    member.fail("getMore", 189)
    member.fail("aggregate", last)
    await until(lambda: reader.failures)
    assert (reader.cursor.status, reader.cursor.failing_for) == ("ended", None)
    await reader.close()


async def test_a_watermark_is_reported_while_a_getmore_waits(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0))
    await reader.start_waiting()
    for number in range(5):
        member.noop(101 + 10 * number)
        assert reader.cursor.can_probe(0.1)
        reader.probe(0.001)
        await asyncio.sleep(0)
        assert not reader.cursor.can_probe(0.1), "a probe is in progress"
        reader.probe(0.001)
        await until(partial(reader.has_watermark, 101 + 10 * number))
        member.insert(102 + 10 * number)
        await until(partial(reader.has, number + 1))
    assert reader.keys == keys(*range(102, 152, 10))
    assert len(member.opened) == 2
    assert not member.commands["killCursors"]
    assert not reader.cursor.can_probe(30)
    await reader.close()
    assert not reader.failures
    assert not reader.distrusted


async def test_a_watermark_waits_for_all_fragments_of_an_event(member: ScriptedMember):
    """A fragment sorts after the whole event that the progress cursor returns."""
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0), fragments=True)
    await reader.start_waiting()
    member.insert(110)
    await until(partial(reader.has, 1))
    member.noop(120)
    await reader.probed()
    assert reader.watermark == Timestamp(110, 1), "there may be more of the event's fragments"
    member.insert(130)
    await until(partial(reader.has, 2))
    assert reader.watermark == Timestamp(130, 1)
    await reader.close()


async def test_a_failed_progress_cursor_is_reopened(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0))
    await reader.start_waiting()
    await reader.probed()
    with structlog.testing.capture_logs() as logs:
        # The last code would end the first cursor; it comes again after the opening.
        for code, times in ((43, 1), (237, 1), (280, 2)):
            member.fail("getMore", code, times=times)
            reader.probe(0.001)
            await until(partial(reader.cursor.can_probe, 0.1))
            member.noop(100 + code)
            reader.probe(0.001)
            await until(partial(reader.has_watermark, 100 + code))
    failed = [line["member"] for line in logs if line["event"] == "progress cursor failed"]
    assert failed == [f"127.0.0.1:{member.port}"]
    assert not member.failures["getMore"], "only the progress cursor failed"
    assert not reader.failures
    await reader.close()


@pytest.mark.parametrize("state", ["opening", "paused", "failing"])
async def test_closing_ends_a_read_at_once(member: ScriptedMember, state: str):
    reader = Reader(member, replace(SETTINGS, backoff_first=4 * PATIENCE))
    member.hang |= {"hello"} if state == "opening" else set()
    member.fail("aggregate", 189, times=int(state == "failing"))
    reader.cursor.pause()
    reader.start()
    await until(lambda: member.commands["hello"] and reader.cursor.status == state)
    async with asyncio.timeout(PATIENCE / 4):
        await reader.close()
        await reader.reading


class ClosedAsItConnects(Reader):
    async def connect(self, timeout: float) -> Connection:
        connection = await super().connect(timeout)
        self.closing = asyncio.create_task(self.cursor.close())
        await asyncio.sleep(0)  # the cursor continues before its read is cancelled
        return connection


async def test_a_cursor_that_is_being_closed_is_not_opened(member: ScriptedMember):
    reader = ClosedAsItConnects(member)
    await reader.read()
    await reader.closing
    assert not member.commands["aggregate"]


AWAY = ("127.0.0.1", 9)


class Unreachable:
    """A member that accepts no connection."""

    @asynccontextmanager
    async def borrow(self, address, timeout):
        raise NetworkError("refused")
        yield


@pytest.mark.parametrize("router_ends", [False, True])
async def test_the_cursor_of_a_closed_stream_is_killed_once_its_member_answers(
    member: ScriptedMember, router_ends: bool
):
    reader = Reader(member, replace(SETTINGS, close_timeout=0.3))
    reader.start()
    await until(lambda: member.commands["getMore"] > 1)
    member.hang |= {"getMore", "hello", "killCursors"}
    await reader.cursor.close()
    assert len(reader.cursor_reaper) == 1
    member.hang.clear()
    if router_ends:
        await reader.cursor_reaper.close()
        assert not member.cursors
    await until(lambda: not member.cursors and not len(reader.cursor_reaper))
    reader.pool.close()
    await until(lambda: not member.writers)


@pytest.mark.parametrize("hanging", [("killCursors",), ("getMore", "killCursors")], ids=str)
async def test_a_cancelled_close_leaves_no_cursor(member: ScriptedMember, hanging: tuple[str, ...]):
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0))
    await reader.start_waiting()
    member.noop(101)
    await reader.probed()
    assert len(member.cursors) == 2, "the main cursor and the progress cursor"
    member.hang |= {*hanging}
    if "getMore" not in hanging:
        member.stop_waiting()
    closing = asyncio.create_task(reader.cursor.close())
    if "getMore" not in hanging:
        await until(lambda: member.commands["killCursors"])
    else:
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    member.hang.clear()
    await until(lambda: not member.cursors)
    await reader.cursor_reaper.close()


async def test_a_member_s_cursors_are_bounded_in_number_and_time():
    """After that time, the member has ended them itself."""
    kills = CursorReaper(Unreachable().borrow, lasting=0.2, most=3, first_pause=0.01)
    with structlog.testing.capture_logs() as logs:
        for number in range(5):
            kills.add(OpenCursor(AWAY, "db.c", number))
        await until(lambda: len(kills) == 3)
        await until(lambda: len(kills) == 0)
        await asyncio.sleep(0)
    assert [line["given_up"] for line in logs if line["event"] == "cursors killed late"] == [5]
    await kills.close()


class Refuses:
    """A member that refuses to kill the cursor 1."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    @asynccontextmanager
    async def borrow(self, address, timeout):
        yield self

    async def command(self, database, command, *, timeout):
        if command["cursors"] == [1]:
            raise CommandError(ErrorCode.Unauthorized, "not yours")
        self.killed += command["cursors"]


async def test_a_refused_kill_delays_no_other_cursor():
    member = Refuses()
    kills = CursorReaper(member.borrow, first_pause=0.01)
    for number in (1, 2, 3):
        kills.add(OpenCursor(AWAY, "db.c", number))
    await until(lambda: member.killed == [2, 3])
    assert len(kills) == 1
    await kills.close()


async def test_a_cursor_left_after_the_end_starts_no_task():
    kills = CursorReaper(Unreachable().borrow)
    await kills.close()
    kills.add(OpenCursor(AWAY, "db.c", 1))
    assert len(kills) == 0
    assert KILL_TASK not in {task.get_name() for task in asyncio.all_tasks()}
