"""A remote cursor on members that fail, hang or vanish."""

import asyncio
import time
from dataclasses import replace

import pytest
import structlog.testing
from bson import Int64

from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import PATIENCE, until
from tests.unit.shard_client.remote_cursor.reader import SETTINGS, Reader, keys


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


async def test_paused_time_does_not_count_as_failure(
    member: ScriptedMember, monkeypatch: pytest.MonkeyPatch
):
    reader = Reader(member)
    reader.start()
    await until(lambda: reader.batches)
    reader.cursor.pause()
    member.cut()
    await until(lambda: member.commands["aggregate"] > 1)
    await until(lambda: reader.cursor.state == "paused")
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
