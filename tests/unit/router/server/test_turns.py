"""No client has the loop for long, and clients without a login have a small part of it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from router.access.login import Login
from router.fair_limit import FairLimit
from router.server.incoming import Turns
from shard_client.wire.documents import encode
from shard_client.wire.frames import build_msg
from tests.harness.facade import Facade, facade
from tests.harness.until import PATIENCE, until

PINGS = 100
PING = build_msg(encode({"ping": 1, "$db": "admin"}), request_id=1)


async def test_turns_are_taken_in_the_order_of_asking_a_few_in_each_iteration() -> None:
    turns, taken = Turns(2), list[int]()

    async def ask(number: int) -> None:
        await turns.take()
        taken.append(number)

    tasks = [asyncio.ensure_future(ask(number)) for number in range(6)]
    counts = []
    while len(taken) < 6:
        await asyncio.sleep(0)
        counts.append(len(taken))
    assert taken == [*range(6)]
    assert all(later - earlier <= 2 for earlier, later in zip([0, *counts], counts, strict=False))
    await asyncio.gather(*tasks)


async def test_a_client_that_is_gone_takes_no_turn() -> None:
    turns = Turns(1)
    await turns.take()
    gone, next_one = (asyncio.ensure_future(turns.take()) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await next_one


async def flooded(router: Facade, clients: int) -> list[int]:
    """Let clients pipeline pings; return how many are answered in each iteration of the loop."""
    connections = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(clients)]
    await until(lambda: router.node.counters.connections == clients)
    before = router.node.counters.requests
    for _reader, writer in connections:
        writer.write(PING * PINGS)
    counts = [0]
    async with asyncio.timeout(PATIENCE):
        while sum(counts) < clients * PINGS:
            await asyncio.sleep(0)
            counts.append(router.node.counters.requests - before - sum(counts))
    for _reader, writer in connections:
        writer.close()
    return counts


@pytest.mark.parametrize(("login", "most"), [(False, 8), (True, 1)])
async def test_pipelined_messages_leave_the_loop_to_others(login: bool, most: int) -> None:
    own: Any = SimpleNamespace(in_progress=FairLimit.of_logins(1))

    def logins(peer: str, _certificate: object) -> Login:
        return Login(own, peer)

    access: Any = SimpleNamespace(login=logins, times=SimpleNamespace(newest=None))
    async with facade(access=access if login else None) as router:
        counts = await flooded(router, 20)
    assert max(counts) <= most
