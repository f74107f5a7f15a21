"""The progress of a member while the getMore of its main cursor waits."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bson import Timestamp

from shard_client.bson.resume_token import cluster_time_of
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import until
from tests.unit.shard_client.remote_cursor.reader import SETTINGS, Reader, keys


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
    assert not reader.suspected


async def test_a_watermark_beyond_an_event_waits_for_the_event(
    member: ScriptedMember,
):
    """The progress cursor's watermark lies beyond an event that the main cursor lacks."""
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0))
    await reader.start_waiting()
    with member.unnoticed():
        member.insert(110)
        member.noop(120)
    await reader.probed()
    assert reader.keys == []
    assert reader.watermark < Timestamp(110, 1)
    member.insert(130)
    await until(partial(reader.has, 2))
    assert reader.keys == keys(110, 130)
    reader.probe(0.001)
    await until(lambda: reader.watermark >= Timestamp(130, 1))
    await reader.close()


async def test_a_progress_cursor_ignores_random_filters(member: ScriptedMember):
    """A random filter passes different events each time, so the progress cursor omits it."""
    reader = Reader(
        member, replace(SETTINGS, await_unknown=20.0), stages=[{"$match": {"$sampleRate": 0.5}}]
    )
    drawn: list[int] = []

    def lets_through(cursor_id: int, pipeline: Sequence[dict[str, Any]]) -> bool:
        if any("$sampleRate" in stage.get("$match", {}) for stage in pipeline):
            drawn.append(cursor_id)
            return cursor_id == drawn[0]
        return True

    member.lets_through = lets_through
    await reader.start_waiting()
    with member.unnoticed():
        member.insert(110)
        member.noop(120)
    await reader.probed()
    assert reader.watermark < Timestamp(110, 1), "the event at 110 has not been returned yet"
    member.insert(130)
    await until(partial(reader.has, 2))
    await reader.close()


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


async def test_a_probe_s_cost_is_the_member_s_time(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0))
    await reader.start_waiting()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    reader.probe(0.02)
    await until(lambda: len(reader.batches) == 2)
    cost = reader.cursor.take_probe_cost()
    assert 0.001 <= cost <= max(0.001, loop.time() - begun - 0.02), "the wait costs nothing"
    member.slow["getMore"] = 0.2
    reader.probe(0.001)
    await until(lambda: len(reader.batches) == 3)
    assert reader.cursor.take_probe_cost() >= 0.19
    assert (reader.sent.openings, reader.sent.get_mores) == (2, 3)
    await reader.close()


async def test_an_unused_progress_cursor_is_closed(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, progress_unused=0.05))
    reader.start()
    await until(lambda: member.commands["getMore"])
    reader.probe(0.001)
    await until(lambda: len(member.cursors) == 2)
    await until(lambda: len(member.cursors) == 1)
    member.insert(110)
    await until(partial(reader.has, 1))
    await reader.close()
    assert not reader.failures


async def test_a_first_cursor_that_is_behind_does_not_lower_the_watermark(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_unknown=0.2))
    await reader.start_waiting()
    member.noop(150)
    reader.probe(0.001)
    await until(partial(reader.has_watermark, 150))
    member.cut()  # the getMore in flight is repeated after the watermark
    member.insert(160)
    await until(partial(reader.has, 1))
    watermarks = [cluster_time_of(batch.watermark.key) for batch in reader.batches]
    assert watermarks == sorted(watermarks)
    await reader.close()


async def test_a_failed_progress_cursor_is_reopened(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0))
    await reader.start_waiting()
    await reader.probed()
    for code in (43, 237, 280):  # the last code would end the first cursor
        member.fail("getMore", code)
        reader.probe(0.001)
        await until(partial(reader.cursor.can_probe, 0.1))
        member.noop(100 + code)
        reader.probe(0.001)
        await until(partial(reader.has_watermark, 100 + code))
    assert not member.failures["getMore"], "only the progress cursor failed"
    assert not reader.failures
    await reader.close()


async def test_a_disconnected_progress_cursor_is_replaced_immediately(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0))
    await reader.start_waiting()
    before = set(member.writers)
    await reader.probed()
    for writer in set(member.writers) - before:
        writer.transport.abort()
    member.noop(150)
    reader.probe(0.001)
    await until(partial(reader.has_watermark, 150))
    assert not reader.failures
    await reader.close()


async def test_a_progress_cursor_behind_the_first_is_replaced(member: ScriptedMember):
    reader = Reader(member, replace(SETTINGS, await_unknown=20.0, batch_target_bytes=1000))
    await reader.start_waiting()
    await reader.probed()
    for number in range(20):
        member.insert(101 + number)
        await until(partial(reader.has, number + 1))
    member.noop(200)
    reader.probe(0.001)
    await until(partial(reader.has_watermark, 200))
    assert len(member.opened) == 3
    await until(lambda: len(member.cursors) == 2)  # the previous progress cursor was killed
    await reader.close()
