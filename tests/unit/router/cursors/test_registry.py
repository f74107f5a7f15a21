"""Merged cursors over scripted shards: reading, waiting, ownership, closing."""

import asyncio

import bson
import pytest
from bson import Timestamp

from router.cursors.cursor import Owner
from router.cursors.registry import CursorRegistry
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, read_until, stream
from tests.doubles.scripted_member import mark_token
from tests.harness.until import until


async def test_a_stream_from_now_omits_earlier_events(cluster: ScriptedCluster):
    cluster.shards["s0"].insert(140, 1)
    cluster.shards["s1"].insert(150, 2)
    cursor, first = await cluster.registry().open(stream(None), OWNER)
    assert bson.decode(first.pbrt) == {"_data": mark_token(Timestamp(150, 2))}
    opened = [member.opened[0] for member in cluster.shards.values()]
    gossiped = {command["$clusterTime"]["clusterTime"] for command in opened}
    assert gossiped == {Timestamp(150, 1)}, "the shards' next writes lie beyond the start"
    cluster.shards["s0"].insert(151, 3)
    cluster.noop(152)
    assert await read_until(cursor, 1) == [3]


@pytest.mark.parametrize(
    ("made_by", "used_by", "code"),
    [
        (Owner(), Owner(b"a" * 16), 50799),
        (Owner(b"a" * 16), Owner(), 50800),
        (Owner(b"a" * 16), Owner(b"b" * 16), 50801),
        (Owner(None, "admin.anna"), Owner(None, "admin.ben"), 13),
    ],
)
async def test_a_cursor_of_another_session_or_user_is_refused(
    cluster: ScriptedCluster, made_by: Owner, used_by: Owner, code: int
):
    registry = cluster.registry()
    cursor, _ = await registry.open(stream(), made_by)
    with pytest.raises(CommandError) as failure, registry.checkout(cursor.cursor_id, used_by):
        pass
    assert failure.value.code == code
    assert cursor.cursor_id in registry


async def waiting_get_more(registry: CursorRegistry, cursor_id: int) -> asyncio.Task[None]:
    """Start a getMore; return it once the cursor is in use."""

    async def get_more() -> None:
        with registry.checkout(cursor_id, OWNER) as held:
            await held.next_batch(None, 60)

    task = asyncio.create_task(get_more())
    await until(lambda: in_use(registry, cursor_id))
    return task


def in_use(registry: CursorRegistry, cursor_id: int) -> bool:
    try:
        with registry.checkout(cursor_id, OWNER):
            return False
    except CommandError as error:
        return error.code == 143


async def test_shutdown_ends_a_get_more_so_that_drivers_resume(cluster: ScriptedCluster):
    registry = cluster.registry()
    cursor, _ = await registry.open(stream(), OWNER)
    task = await waiting_get_more(registry, cursor.cursor_id)
    await registry.close()
    with pytest.raises(CommandError) as failure:
        await task
    assert failure.value.code == 91
    assert failure.value.labels == {"ResumableChangeStreamError"}
    with pytest.raises(CommandError) as failure:
        await registry.open(stream(), OWNER)
    assert failure.value.code == 91


async def test_a_cancelled_opening_leaves_no_cursors(cluster: ScriptedCluster):
    registry = cluster.registry(close_timeout=0.5)
    cluster.shards["s1"].hang.add("aggregate")
    task = asyncio.create_task(registry.open(stream(), OWNER))
    await until(lambda: cluster.shards["s1"].commands["aggregate"])
    task.cancel()
    await asyncio.wait({task})
    await registry.close()
    assert cluster.open_cursors == 0
    await cluster.clusters[0].close()
    await until(lambda: not cluster.shards["s1"].writers)
