"""A remote cursor on a scripted member: prefetching, pausing, closing."""

from dataclasses import replace

import pytest

from shard_client.errors import ProtocolError
from shard_client.remote_cursor import remote_cursor
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.remote_cursor.cursor_state import CursorState, follow
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


async def test_an_invalidate_that_fills_its_reply_ends_the_cursor(member: ScriptedMember):
    """mongod says so only in the next reply, which may be lost."""
    reader = Reader(member, replace(SETTINGS, batch_target_bytes=1))
    reader.start()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    key = invalidate(member, 102)
    await until(lambda: reader.batches[-1].invalidated)
    assert (reader.batches[-1].cursor_id, reader.keys[-1]) == (0, key.encode())
    assert reader.cursor.state == "ended"
    await until(lambda: not member.cursors)
    await reader.close()


async def test_each_step_of_a_cursor_is_one_of_its_transitions(
    member: ScriptedMember, monkeypatch: pytest.MonkeyPatch
):
    """A cursor that pauses, fails, recovers, is invalidated and closed passes all of its states."""
    passed = set()

    def noted(state: CursorState, following: CursorState) -> CursorState:
        passed.add((type(state).__name__, type(following).__name__))
        return follow(state, following)

    monkeypatch.setattr(remote_cursor, "follow", noted)
    reader = Reader(member)
    reader.start()
    await until(lambda: member.commands["getMore"])
    reader.cursor.pause()
    await until(lambda: reader.cursor.state == "paused" and member.waiting == 0)
    await until(lambda: ("Reading", "Paused") in passed)
    reader.cursor.resume()
    member.insert(101)
    await until(lambda: reader.keys == keys(101))
    member.cut()
    member.insert(102)
    await until(lambda: reader.keys == keys(101, 102))
    member.insert(103, operationType="invalidate")
    await until(lambda: reader.batches[-1].invalidated)
    assert reader.cursor.state == "ended"
    await reader.close()
    opened = {("Connecting", "Opening"), ("Opening", "Reading")}
    paused = {("Reading", "Paused"), ("Paused", "Connecting"), ("Connecting", "Reading")}
    failed = {("Reading", "Failing"), ("Failing", "Connecting")}
    ended = {("Reading", "Ended"), ("Ended", "Closing"), ("Closing", "Ended")}
    assert passed >= opened | paused | failed | ended
