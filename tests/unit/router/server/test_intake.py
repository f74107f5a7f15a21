"""Large messages of all clients together take bounded memory, and one client leaves room."""

import asyncio
import struct
from contextlib import AsyncExitStack

import pytest

from router.client_limits import ClientLimits
from router.fair_limit import FairLimit
from tests.harness.facade import facade
from tests.harness.raw_client import RawClient
from tests.harness.until import until

MIB = 1024 * 1024
HEADER = struct.pack("<iiii", 4 * MIB, 1, 0, 2013)


async def asked(intake: FairLimit, client: str, size: int) -> "asyncio.Task[None]":
    task = asyncio.create_task(intake.admit(client, size))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_one_client_leaves_room_for_others() -> None:
    intake = FairLimit.of_messages(100)
    assert (await asked(intake, "a", 25)).done()
    assert (await asked(intake, "a", 25)).done()
    more = await asked(intake, "a", 10)
    assert not more.done(), "the client has half of all"
    assert (await asked(intake, "b", 40)).done()
    other = await asked(intake, "c", 20)
    assert not other.done(), "no room"
    intake.release("a", 25)
    await asyncio.gather(other, return_exceptions=True)
    assert (other.done(), more.done(), intake.held) == (True, False, 85)
    intake.release("b", 40)
    await more
    for client, size in (("a", 25), ("a", 10), ("c", 20)):
        intake.release(client, size)
    assert intake.held == 0


async def test_a_small_message_waits_for_no_larger_one_of_its_client() -> None:
    intake = FairLimit.of_messages(100)
    await intake.admit("a", 25)
    larger = await asked(intake, "a", 40)
    small = await asked(intake, "a", 20)
    assert (small.done(), larger.done()) == (True, False)
    late = await asked(intake, "a", 10)
    intake.release("a", 25)
    await late
    assert (larger.done(), intake.held) == (False, 30)
    intake.release("a", 20)
    await larger


async def test_a_message_whose_client_has_gone_holds_nothing() -> None:
    intake = FairLimit.of_messages(100)
    await intake.admit("a", 60)
    waiting = await asked(intake, "b", 60)
    admitted = await asked(intake, "c", 60)
    waiting.cancel()
    intake.release("a", 60)
    await admitted
    intake.release("c", 60)
    late = await asked(intake, "a", 60)
    blocked = await asked(intake, "b", 60)
    intake.release("a", 60)  # admits b, which is cancelled before it runs
    blocked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocked
    assert late.done()
    assert intake.held == 0


async def test_unfinished_messages_are_bounded_in_all() -> None:
    limits = ClientLimits(messages_bytes=16 * MIB)
    async with facade(client_limits=limits) as router, AsyncExitStack() as owned:
        intake = router.listener._shared.intake
        slow = [await owned.enter_async_context(await router.client()) for _ in range(20)]
        for each in slow:
            each.send_bytes(HEADER + bytes(3 * MIB))
        await until(lambda: intake.held == 8 * MIB)
        async with await connect_from("127.0.0.2", router.port) as other:
            reply = await other.command("admin", {"ping": 1, "comment": "x" * (MIB // 2)})
            assert reply["ok"] == 1
        assert intake.held == 8 * MIB
        for each in slow:
            each.writer.transport.abort()
        await until(lambda: intake.held == 0)
        async with await router.client() as client:
            reply = await client.command("admin", {"ping": 1, "comment": "x" * (MIB // 2)})
            assert reply["ok"] == 1


async def test_waiting_for_room_misses_no_deadline() -> None:
    limits = ClientLimits(messages_bytes=8 * MIB, message_time=0.5)
    async with (
        facade(client_limits=limits) as router,
        await router.client() as slow,
        await router.client() as patient,
    ):
        slow.send_bytes(HEADER)
        await until(lambda: router.listener._shared.intake.held == 4 * MIB)
        asked = patient.send("admin", {"ping": 1, "comment": "x" * (3 * MIB)})
        assert await slow.closed()
        assert (await patient.receive()).response_to == asked


async def connect_from(address: str, port: int) -> RawClient:
    connection = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    return RawClient(*connection)
