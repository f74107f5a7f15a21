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
