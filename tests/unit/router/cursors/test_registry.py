"""Merged cursors over scripted shards: reading, waiting, ownership, closing."""

import asyncio

import pytest

from router.cursors.cursor import Owner
from router.cursors.registry import CursorRegistry
from shard_client.errors import CommandError
from tests.doubles.scripted_cluster import OWNER, ScriptedCluster, stream
from tests.harness.until import until


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
