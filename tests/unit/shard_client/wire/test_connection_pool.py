"""The pool of connections to members: reuse, bounds, and that only idle ones are kept."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Address, Connection
from shard_client.wire.connection_pool import ConnectionPool, PoolCounts, PoolLimits
from tests.doubles.scripted_member import ScriptedMember
from tests.harness.until import until

TIME = 30.0

Make = Callable[..., ConnectionPool]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[ConnectionPool] = []

    def pool(**limits: float) -> ConnectionPool:
        made.append(ConnectionPool(PoolLimits(**limits)))  # type: ignore[arg-type]
        return made[-1]

    yield pool
    for each in made:
        each.close()


def at(member: ScriptedMember) -> Address:
    return "127.0.0.1", member.port


async def ping(connection: Connection) -> None:
    await connection.command("admin", {"ping": 1}, timeout=TIME)


async def test_an_idle_connection_that_was_cut_is_replaced(member: ScriptedMember, make: Make):
    pool = make()
    idle = [await pool.take(at(member), TIME) for _ in range(3)]
    for each in idle:
        pool.give_back(each)
    member.cut()
    fresh = await pool.take(at(member), TIME, greet=True)
    assert fresh not in idle
    await ping(fresh)


async def test_a_reused_connection_checks_the_member_s_state(member: ScriptedMember, make: Make):
    """It was primary when the connection was made, and is a secondary when it is reused."""
    pool = make()
    pool.give_back(await pool.take(at(member), TIME))
    member.primary = False
    stale = await pool.take(at(member), TIME)
    assert stale.hello["isWritablePrimary"]
    pool.give_back(stale)
    fresh = await pool.take(at(member), TIME, greet=True)
    assert fresh is stale
    assert not fresh.hello["isWritablePrimary"]


async def test_a_hanging_member_is_an_error_in_time(member: ScriptedMember, make: Make):
    pool = make()
    idle = [await pool.take(at(member), TIME) for _ in range(2)]
    for each in idle:
        pool.give_back(each)
    member.hang.add("hello")
    with pytest.raises(NetworkError):
        await pool.take(at(member), 0.1, greet=True)
    assert all(each.closed for each in idle), "the others hang as well"


async def test_the_number_of_connections_is_limited(member: ScriptedMember, make: Make):
    pool = make(most=3)
    taken = [await pool.take(at(member), TIME) for _ in range(3)]
    with pytest.raises(CommandError) as failure:
        await pool.take(at(member), 0.05)
    assert failure.value.code == 202
    assert "all 3 connections to 127.0.0.1" in failure.value.message
    waiting = [asyncio.create_task(pool.take(at(member), TIME)) for _ in range(2)]
    await asyncio.sleep(0)
    pool.give_back(taken[0])
    assert await waiting[0] is taken[0], "the longest waiting borrower comes first"
    taken[1].abort()
    assert await waiting[1] not in taken, "a cut connection makes room for a new one"
    assert len(member.writers) == 3


async def test_a_cancelled_borrower_s_turn_goes_to_the_next(member: ScriptedMember, make: Make):
    pool = make(most=1)
    only = await pool.take(at(member), TIME)
    left, stayed = (asyncio.create_task(pool.take(at(member), TIME)) for _ in range(2))
    await asyncio.sleep(0)
    pool.give_back(only)
    left.cancel()
    assert await stayed is only


async def test_the_number_of_brief_borrowers_is_limited(member: ScriptedMember, make: Make):
    pool = make(most_brief=2)
    most = 0

    async def use() -> None:
        nonlocal most
        async with pool.borrow(at(member), TIME) as connection:
            most = max(most, pool.counts[at(member)].in_use)
            await ping(connection)

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(use())
    assert (member.commands["ping"], most) == (20, 2)
    assert pool.counts[at(member)] == PoolCounts(0, 2, 2)
    async with pool.borrow(at(member), TIME), pool.borrow(at(member), TIME):
        with pytest.raises(CommandError):
            async with pool.borrow(at(member), 0.05):
                pass


async def test_a_broken_connection_closes_idle_connections(member: ScriptedMember, make: Make):
    pool = make()
    idle = [await pool.take(at(member), TIME) for _ in range(2)]
    for each in idle:
        pool.give_back(each)

    async def use() -> None:
        async with pool.borrow(at(member), TIME) as connection:
            member.cut()
            await ping(connection)

    with pytest.raises(NetworkError):
        await use()
    await until(lambda: pool.counts[at(member)] == PoolCounts(0, 0, 2))


async def test_idle_connections_are_closed_after_a_time_and_surplus_ones_sooner(
    member: ScriptedMember, make: Make
):
    pool = make(most_idle=2, surplus_time=0.05, idle_time=0.4)
    taken = [await pool.take(at(member), TIME) for _ in range(5)]
    for each in taken:
        pool.give_back(each)
    assert pool.counts[at(member)].available == 5
    await until(lambda: len(member.writers) == 2)
    assert [each.closed for each in taken] == [True, True, True, False, False]
    await until(lambda: not member.writers)


async def test_memory_of_large_replies_is_released(member: ScriptedMember, make: Make):
    pool = make()
    member.documents["large"] = [{"text": "x" * 1_000_000}]
    connection = await pool.take(at(member), TIME)
    await connection.command("db", {"find": "large"}, timeout=TIME)
    assert len(connection._stream._view) > 1_000_000
    pool.give_back(connection)
    assert len(connection._stream._view) < 10_000
    assert await pool.take(at(member), TIME) is connection
    await ping(connection)
