"""Slow, silent and flooding clients cost a bounded amount and do not delay other clients."""

import asyncio
import resource
import struct
import zlib
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any

import bson
import pytest

from router.config.settings import load_settings
from router.limits.client_limits import ClientLimits, supported_connections
from router.limits.connection_limit import ConnectionLimit, client_of
from router.limits.fair_limit import FairLimit
from router.limits.turns import Turns
from router.server.client_deadlines import ClientDeadlines
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.wire.documents import encode
from shard_client.wire.frames import build_msg
from tests.harness.facade import Facade, facade
from tests.harness.raw_client import RawClient
from tests.harness.until import PATIENCE, until

PING = {"ping": 1}


async def ends(client: RawClient) -> None:
    """Wait until the router has closed the connection."""
    async with asyncio.timeout(PATIENCE):
        assert await client.closed()


def test_each_deadline_is_checked() -> None:
    limits = ClientLimits(message_time=30, login_time=10, idle_before_login=600)
    deadlines = ClientDeadlines(limits, 0.0)

    def missed(
        now: float, count: int, *, unfinished: bool = False, busy: bool = False,
        may_idle: bool = True, unsent: int = 0, login_since: float | None = None,
    ) -> str | None:  # fmt: skip
        idle = asyncio.Event()
        if not busy:
            idle.set()
        incoming: Any = SimpleNamespace(
            count=count, unfinished=unfinished, idle=idle, may_idle=may_idle
        )
        return deadlines.missed(now, incoming, unsent=unsent, login_since=login_since)

    assert missed(10.0, 0) is None
    assert missed(11.0, 0, unfinished=True) is None
    assert missed(41.0, 0, unfinished=True) is None
    assert "message" in str(missed(41.1, 0, unfinished=True))
    assert missed(73.0, 1, unfinished=True) is None  # another message
    # Replies must be read, even if slowly.
    assert missed(100.0, 1) is None
    assert missed(101.0, 1, unsent=5000) is None
    assert missed(129.0, 1, unsent=9000) is None
    assert missed(131.0, 1, unsent=8999) is None
    assert "replies" in str(missed(161.1, 1, unsent=8999))
    assert missed(200.0, 1) is None
    # A client that has logged in, or does not have to, may be idle.
    assert missed(10_000.0, 1) is None
    # A monitor never logs in, and sends or awaits hellos.
    assert missed(11_000.0, 1, busy=True, may_idle=False) is None
    assert missed(11_600.0, 2, may_idle=False) is None
    assert missed(12_200.0, 2, may_idle=False) is None
    assert "log in" in str(missed(12_200.1, 2, may_idle=False))
    # Other commands do not extend the time for a login.
    begun = 12_300.0
    assert missed(begun + 10, 3, login_since=begun) is None
    assert "login" in str(missed(begun + 10.6, 4, busy=True, login_since=begun))


def test_connections_are_counted_for_each_client() -> None:
    counts = ConnectionLimit(10, exempt=[ip_network("10.0.0.0/8"), ip_network("::1")])
    assert counts.limit_per_client == 8
    admitted = [*["1.2.3.4"] * 8, "2001:db8::1", "2001:db8::2"]
    exempt = ["10.1.2.3", "::ffff:10.1.2.3", "::1"]
    assert all(counts.admit(address, 0.0) for address in admitted[:8])
    assert not counts.admit("1.2.3.4", 0.0)
    assert not counts.admit("::ffff:1.2.3.4", 0.0)
    assert all(counts.admit(address, 0.0) for address in admitted[8:])
    assert counts.by_client["2001:db8::/64"] == 2
    assert not counts.admit("1.2.3.5", 0.0)
    assert all(counts.admit(address, 0.0) for address in exempt)
    for address in (*admitted, *exempt):
        counts.release(address)
    assert (counts.open, dict(counts.by_client)) == (0, {})
    assert counts.refused == 3
    assert client_of("fe80::1%eth0") == "fe80::/64"


def test_the_limit_of_open_files_bounds_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1000, 4000))
    assert supported_connections(65536) == 800
    assert supported_connections(65536, 2) == 400
    assert supported_connections(100) == 100
    settings = {"sharding": {"configDB": "cfg/a:1"}, "upstream": "mongodb://a:1"}
    limits = load_settings(settings | {"setParameter": {"loginTimeoutMs": 1500}}).client_limits
    assert (limits.connections, limits.login_time) == (400, 1.5)


def test_exempt_networks_are_checked() -> None:
    good = {"net": {"maxIncomingConnectionsOverride": ["10.0.0.0/8", "::1"]}}
    assert [str(each) for each in load_settings(good).client_limits.exempt] == [
        "10.0.0.0/8",
        "::1/128",
    ]
    with pytest.raises(ValueError, match=r"'10\.0\.0\.0/99' does not appear to be"):
        load_settings({"net": {"maxIncomingConnectionsOverride": ["10.0.0.0/99"]}})


ACCESS: Any = SimpleNamespace(in_progress=FairLimit(1), times=SimpleNamespace(newest=(None, None)))
"""Authorization, of which these tests need no more: none of their clients logs in."""


def secured(limits: ClientLimits) -> AbstractAsyncContextManager[Facade]:
    """Listen with authorization, before a mongos that does not answer."""
    return facade(UpstreamMongos([("127.0.0.1", 9)]), access=ACCESS, client_limits=limits)


async def test_long_messages_before_the_login_end_the_connection() -> None:
    async with secured(ClientLimits(message_size_before_login=2000)) as router:
        async with await router.client() as within:
            assert (await within.command("admin", {**PING, "comment": "x" * 1900}))["ok"]
        async with await router.client() as beyond:
            # The length alone is enough: nothing of the message is awaited.
            beyond.send_bytes(struct.pack("<iiii", 2001, 1, 0, 2013))
            await ends(beyond)


async def test_before_the_login_decompression_stops_at_the_limit() -> None:
    async with secured(ClientLimits()) as router, await router.client() as client:
        body = struct.pack("<IB", 0, 0) + bson.encode({**PING, "$db": "admin", "x": "x" * 20_000})
        packed = struct.pack("<iiB", 2013, len(body), 2) + zlib.compress(body)
        client.send_bytes(struct.pack("<iiii", 16 + len(packed), 1, 0, 2012) + packed)
        await ends(client)


async def test_before_the_login_no_field_opens_a_connection_to_the_upstream() -> None:
    async with secured(ClientLimits()) as router, await router.client() as client:
        reply = await client.command("admin", {**PING, "maxTimeMS": -1})
        assert (reply["code"], reply["errmsg"]) == (2, "mergerouter does not know {maxTimeMS: -1}")
        (connected,) = router.listener._connections
        assert connected.client.links == {}


MIB = 1024 * 1024
HEADER = struct.pack("<iiii", 4 * MIB, 1, 0, 2013)


async def asked(intake: FairLimit, client: str, size: int) -> "asyncio.Task[None]":
    task = asyncio.create_task(intake.admit(client, size))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_small_message_waits_for_no_larger_one_of_its_client() -> None:
    intake = FairLimit(100)
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
    intake = FairLimit(100)
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
    async with (
        facade(client_limits=limits) as router,
        AsyncExitStack() as owned,
    ):
        intake = router.listener._shared.intake
        slow = [await owned.enter_async_context(await router.client()) for _ in range(20)]
        for each in slow:
            each.send_bytes(HEADER + bytes(3 * MIB))
        await until(lambda: intake.held == 8 * MIB)
        elsewhere = ("127.0.0.2", 0)
        connection = asyncio.open_connection("127.0.0.1", router.port, local_addr=elsewhere)
        async with RawClient(*await connection) as other:
            reply = await other.command("admin", {"ping": 1, "comment": "x" * (MIB // 2)})
            assert reply["ok"] == 1
        assert intake.held == 8 * MIB
        for each in slow:
            each.writer.transport.abort()
        await until(lambda: intake.held == 0)
        async with await router.client() as client:
            reply = await client.command("admin", {"ping": 1, "comment": "x" * (MIB // 2)})
            assert reply["ok"] == 1


PINGS = 100
PING_FRAME = build_msg(encode({"ping": 1, "$db": "admin"}), request_id=1)


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


async def flooded(router: Facade, clients: int) -> list[int]:
    """Let clients pipeline pings; return how many are answered in each iteration of the loop."""
    connections = [await asyncio.open_connection("127.0.0.1", router.port) for _ in range(clients)]
    await until(lambda: router.process.counters.connections == clients)
    before = router.process.counters.requests
    for _reader, writer in connections:
        writer.write(PING_FRAME * PINGS)
    counts = [0]
    async with asyncio.timeout(PATIENCE):
        while sum(counts) < clients * PINGS:
            await asyncio.sleep(0)
            counts.append(router.process.counters.requests - before - sum(counts))
    for _reader, writer in connections:
        writer.close()
    return counts


@pytest.mark.parametrize(("login", "most"), [(False, 8), (True, 1)])
async def test_pipelined_messages_leave_the_loop_to_others(login: bool, most: int) -> None:
    async with facade(access=ACCESS if login else None) as router:
        counts = await flooded(router, 20)
    assert max(counts) <= most
