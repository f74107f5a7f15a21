"""A remote cursor on members that fail, hang or vanish."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest
import structlog.testing
from bson import Int64

from shard_client.errors import RESUMABLE_LABEL
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE, until
from tests.unit.shard_client.remote_cursor.reader import SETTINGS, Reader, keys


async def test_events_arrive_once_despite_cuts(member: ScriptedMember):
    reader = Reader(member)
    reader.start()
    for second in range(101, 121):
        member.insert(second)
        if second % 4 == 0:
            member.cut()
        await asyncio.sleep(0.004)
    await until(lambda: len(reader.keys) >= 20)
    assert reader.keys == keys(*range(101, 121))
    await reader.close()
    assert not reader.failures


async def test_a_hanging_member_is_abandoned(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, reply_timeout=0.1, connect_timeout=0.3))
    reader.start()
    await until(lambda: member.commands["getMore"] > 1)
    member.hang |= {"getMore", "hello"}
    await until(lambda: reader.suspected)
    member.hang.clear()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    await reader.cursor.close()


async def test_a_slow_member_is_not_abandoned(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, reply_timeout=0.05, close_timeout=4.0))
    reader.start()
    await until(lambda: member.commands["getMore"] > 1)
    member.hang.add("getMore")
    await until(lambda: member.commands["hello"] >= 3)
    assert reader.suspected == []
    assert reader.failures == []
    async with asyncio.timeout(PATIENCE):
        await reader.close()


async def test_an_abandoned_member_is_suspected_and_the_stream_continues(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0))
    reader.start()
    member.insert(101)
    await until(partial(reader.has, 1))
    await until(lambda: member.commands["getMore"] == 2)
    reader.cursor.leave_member()
    assert reader.suspected == [("127.0.0.1", member.port)]
    member.insert(102)
    await until(partial(reader.has, 2))
    assert reader.keys == keys(101, 102)
    member.stop_waiting()
    await reader.cursor.close()


async def test_a_fatal_failure_is_reported_once(member: ScriptedMember):
    reader = Reader(member)
    member.fail("getMore", 280)
    reader.start()
    await until(lambda: reader.failures)
    await reader.cursor.close()
    assert [error.code for error in reader.failures] == [280]


async def test_a_member_that_stays_unreachable_fails_the_cursor(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, failure_timeout=0.2))
    reader.start()
    await until(lambda: reader.batches)
    await member.stop()
    await until(lambda: reader.cursor.state == "failing")
    await until(lambda: reader.failures)
    assert reader.failures[0].code == 6
    assert RESUMABLE_LABEL in reader.failures[0].labels
    async with asyncio.timeout(PATIENCE):
        await reader.cursor.close()


async def test_paused_time_does_not_count_as_failure(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, failure_timeout=1.5))
    reader.start()
    await until(lambda: reader.batches)
    reader.cursor.pause()
    member.cut()
    await until(lambda: member.commands["aggregate"] > 1)
    await until(lambda: reader.cursor.state == "paused")
    assert reader.cursor.failing_for is None, "it is open again"
    await asyncio.sleep(1.6)  # longer than the failure timeout, which no event reports
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


@pytest.mark.parametrize("code", [43, 202, 237, 10107])
async def test_a_lasting_failure_is_resumable_for_the_client(member: ScriptedMember, code: int):
    reader = Reader(member, replace(SETTINGS, failure_timeout=0.05))
    member.fail("getMore", code, times=1000)
    reader.start()
    await until(lambda: reader.failures)
    await reader.cursor.close()
    (failure,) = reader.failures
    assert (failure.code, failure.labels) == (code, {RESUMABLE_LABEL})


async def test_the_time_of_a_hang_counts_as_failure(member: ScriptedMember):
    limits = {"reply_timeout": 0.5, "connect_timeout": 1.0, "failure_timeout": 0.6}
    reader = Reader(member, replace(SETTINGS, close_timeout=0.5, **limits))
    reader.start()
    await until(lambda: reader.batches)
    member.hang |= {"getMore", "hello", "isMaster"}
    await until(lambda: reader.failures)
    # The hang is noticed after 0.5 s or later, and the hello that checks the member takes 1 s: no
    # time is left for another attempt.
    assert len(member.opened) == 1
    assert member.commands["hello"] == 2
    await reader.cursor.close()


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


FRAME = 600
"""More bytes than any of the replies below."""


async def cut_everywhere(member: ScriptedMember, first: int, last: int) -> None:
    """Cut the connections after each of these numbers of bytes, with an event in between."""
    # Another failure may follow before a getMore has been answered.
    quick = replace(SETTINGS, backoff_first=0.001, backoff_max=0.002, failure_timeout=30.0)
    reader = Reader(member, quick)
    reader.start()
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
    await until(lambda: not [each for each in member.cursors.values() if each.read])


@pytest.mark.parametrize("eighth", range(8))
async def test_cuts_at_any_byte_lose_no_event(eighth: int):
    """The cut hits hello, opening and getMore replies alike."""
    member = await ScriptedMember("rs").start()
    member.noop(99)
    width = FRAME // 8
    await cut_everywhere(member, eighth * width, (eighth + 1) * width)
    await member.stop()
