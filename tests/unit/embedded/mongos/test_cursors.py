"""The cursors of the embedded mongos."""

import asyncio
from random import Random

import pytest
from embedded.mongos.cursors import CursorTable

from shard_client.errors import CommandError

DOCUMENTS = [{"_id": i} for i in range(250)]


async def test_a_cursor_returns_batches_until_the_end() -> None:
    table = CursorTable(Random(1))
    reply = table.open("a.b", DOCUMENTS, batch_size=None, session=None)
    got = list(reply["cursor"]["firstBatch"])
    assert len(got) == 101
    cursor_id = reply["cursor"]["id"]
    reply = table.more(cursor_id, "a", "b", 100)
    got += reply["cursor"]["nextBatch"]
    assert reply["cursor"]["id"] == cursor_id
    reply = table.more(cursor_id, "a", "b", None)
    got += reply["cursor"]["nextBatch"]
    assert (reply["cursor"]["id"], got, len(table)) == (0, DOCUMENTS, 0)


async def test_batch_size_zero_and_single_batches() -> None:
    table = CursorTable(Random(1))
    reply = table.open("a.b", DOCUMENTS, batch_size=0, session=None)
    assert reply["cursor"]["firstBatch"] == []
    assert reply["cursor"]["id"] != 0
    table.close()
    reply = table.open("a.b", DOCUMENTS, batch_size=2, session=None, single_batch=True)
    assert (len(reply["cursor"]["firstBatch"]), reply["cursor"]["id"]) == (2, 0)
    assert len(table) == 0


async def test_a_batch_fits_in_a_reply() -> None:
    table = CursorTable(Random(1))
    large = [{"_id": i, "pad": "x" * (9 << 20)} for i in range(2)]
    reply = table.open("a.b", large, batch_size=10, session=None)
    assert len(reply["cursor"]["firstBatch"]) == 1
    table.close()


async def test_cursors_end_when_idle_killed_or_with_their_session() -> None:
    table = CursorTable(Random(1), idle_seconds=0.01)
    ids = [
        table.open("a.b", DOCUMENTS, batch_size=1, session=session)["cursor"]["id"]
        for session in (b"one", b"two", None)
    ]
    table.end_session(b"one")
    assert table.kill([ids[0], ids[1]]) == ([ids[1]], [ids[0]])
    await asyncio.sleep(0.1)  # ten times the timeout of idle cursors
    with pytest.raises(CommandError) as caught:
        table.more(ids[2], "a", "b", None)
    assert caught.value.code == 43


async def test_a_cursor_of_another_namespace_is_refused() -> None:
    table = CursorTable(Random(1))
    cursor_id = table.open("a.b", DOCUMENTS, batch_size=1, session=None)["cursor"]["id"]
    with pytest.raises(CommandError) as caught:
        table.more(cursor_id, "a", "c", None)
    assert caught.value.code == 13
    table.close()
