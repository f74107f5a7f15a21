"""The progress of a member while the getMore of its main cursor waits."""

import asyncio
from dataclasses import replace
from functools import partial

from bson import Timestamp

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
