"""Cursors that their members could not kill when they were closed."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shard_client.errors import NetworkError
from shard_client.remote_cursor.open_cursor import CursorReaper, OpenCursor
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import until
from tests.unit.shard_client.remote_cursor.reader import SETTINGS, Reader

AWAY = ("127.0.0.1", 9)


class Unreachable:
    """A member that accepts no connection; counts the attempts."""

    attempts = 0

    @asynccontextmanager
    async def borrow(self, address, timeout):
        self.attempts += 1
        raise NetworkError("refused")
        yield


async def closed_while_hanging(member: ScriptedMember) -> Reader:
    """Return a reader whose cursor was closed while its member hangs; the member still has it."""
    reader = Reader(member, replace(SETTINGS, close_timeout=0.3))
    reader.start()
    await until(lambda: member.commands["getMore"] > 1)
    member.hang |= {"getMore", "hello", "killCursors"}
    await reader.cursor.close()
    assert member.cursors
    return reader


async def test_the_cursor_of_a_closed_stream_is_killed_once_its_member_answers(
    member: ScriptedMember,
):
    reader = await closed_while_hanging(member)
    assert len(reader.cursor_reaper) == 1
    member.hang.clear()
    await until(lambda: not member.cursors)
    await until(lambda: not len(reader.cursor_reaper))
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


async def test_a_member_that_was_slow_at_the_end_keeps_no_cursor(member: ScriptedMember):
    reader = await closed_while_hanging(member)
    member.hang.clear()
    await reader.cursor_reaper.close()
    assert not member.cursors


async def test_attempts_end_when_the_member_has_ended_the_cursor_itself():
    member = Unreachable()
    kills = CursorReaper(member.borrow, lasting=0.05, first_pause=0.01)
    kills.add(OpenCursor(AWAY, "db.c", 1))
    await until(lambda: len(kills) == 0)
    assert member.attempts > 0


async def test_a_member_s_cursors_are_bounded_in_number():
    kills = CursorReaper(Unreachable().borrow, most=3)
    for number in range(5):
        kills.add(OpenCursor(AWAY, "db.c", number))
    assert len(kills) == 3
    await kills.close()
    assert len(kills) == 0
