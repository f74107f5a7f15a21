"""Shared and exclusive locks of namespaces, with bounded waits."""

import asyncio

import pytest

from embedded.mongos.namespace_locks import NamespaceLocks
from shard_client.errors import CommandError


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_exclusive_waits_for_shared_holders_and_delays_new_ones() -> None:
    locks = NamespaceLocks()
    order: list[str] = []
    await locks.acquire_shared("a.b")
    await locks.acquire_shared("a.b")

    async def alone() -> None:
        async with locks.exclusive("a.b"):
            order.append("alone")

    async def late() -> None:
        async with locks.shared("a.b"):
            order.append("late")

    async with asyncio.TaskGroup() as group:
        group.create_task(alone())
        await settle()
        group.create_task(late())
        await settle()
        locks.release_shared("a.b")
        await settle()
        assert order == []
        locks.release_shared("a.b")
    assert order == ["alone", "late"]


async def test_locks_do_not_block_other_namespaces() -> None:
    locks = NamespaceLocks()
    async with locks.exclusive("a.b", "a.c"), locks.shared("a.d"):
        pass


async def test_waiting_is_bounded() -> None:
    locks = NamespaceLocks(timeout=0.01)
    async with locks.shared("a.b"):
        with pytest.raises(CommandError) as caught:
            async with locks.exclusive("a.a", "a.b"):
                pass
    assert caught.value.code == 24
    async with locks.exclusive("a.a", "a.b"):  # locks taken before the timeout were released
        with pytest.raises(CommandError):
            await locks.acquire_shared("a.b")


async def test_a_cancelled_waiter_leaves_no_lock() -> None:
    locks = NamespaceLocks()
    await locks.acquire_shared("a.b")

    async def alone() -> None:
        async with locks.exclusive("a.b"):
            raise AssertionError("never reached")

    task = asyncio.create_task(alone())
    await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with locks.shared("a.b"):
        pass
    locks.release_shared("a.b")
    assert not locks.held
