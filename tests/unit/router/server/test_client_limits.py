"""Slow, silent and flooding clients cost a bounded amount and do not delay other clients."""

import asyncio
import resource
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from structlog.testing import capture_logs

from router.access.login import Login
from router.catalog.upstream import UpstreamMongos
from router.client_limits import (
    ClientLimits,
    ConnectionCounts,
    client_of,
    supported_connections,
)
from router.config.settings import load_settings
from router.fair_limit import FairLimit
from router.server.client_deadlines import ClientDeadlines, Progress
from tests.doubles.scripted_server import Asked, scripted_server
from tests.harness.facade import Facade, facade
from tests.harness.raw_client import RawClient
from tests.harness.until import PATIENCE, until

_MIB = 1024 * 1024
SHORT = 1.0
PING = {"ping": 1}
SASL_START = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"first"}


async def ends(client: RawClient) -> None:
    """Wait until the router has closed the connection."""
    async with asyncio.timeout(PATIENCE):
        assert await client.closed()


async def test_a_message_that_does_not_end_ends_its_connection() -> None:
    limits = ClientLimits(message_time=SHORT)
    async with facade(client_limits=limits) as router, await router.client() as other:
        async with await router.client() as slow:
            assert (await slow.command("admin", PING))["ok"]
            slow.send_bytes(struct.pack("<iiii", 40 * _MIB, 1, 0, 2013))
            with capture_logs() as logged:
                await ends(slow)
        assert [line["reason"] for line in logged if "reason" in line] == [
            "a message has begun and does not end"
        ]
        assert (await other.command("admin", PING))["ok"]


def test_each_deadline_is_checked() -> None:
    limits = ClientLimits(message_time=30, login_time=10, idle_before_login=600)
    deadlines = ClientDeadlines(limits, 0.0)
    assert deadlines.missed(Progress(0), 10.0) is None
    assert deadlines.missed(Progress(0, unfinished=True), 11.0) is None
    assert deadlines.missed(Progress(0, unfinished=True), 41.0) is None
    assert "message" in str(deadlines.missed(Progress(0, unfinished=True), 41.1))
    assert deadlines.missed(Progress(1, unfinished=True), 73.0) is None  # another message
    # Replies must be read, even if slowly.
    assert deadlines.missed(Progress(1), 100.0) is None
    assert deadlines.missed(Progress(1, unsent=5000), 101.0) is None
    assert deadlines.missed(Progress(1, unsent=9000), 129.0) is None
    assert deadlines.missed(Progress(1, unsent=8999), 131.0) is None
    assert "replies" in str(deadlines.missed(Progress(1, unsent=8999), 161.1))
    assert deadlines.missed(Progress(1), 200.0) is None
    # A client that has logged in, or does not have to, may be idle.
    assert deadlines.missed(Progress(1), 10_000.0) is None
    # A monitor never logs in, and sends or awaits hellos.
    assert deadlines.missed(Progress(1, busy=True, may_idle=False), 11_000.0) is None
    assert deadlines.missed(Progress(2, may_idle=False), 11_600.0) is None
    assert deadlines.missed(Progress(2, may_idle=False), 12_200.0) is None
    assert "log in" in str(deadlines.missed(Progress(2, may_idle=False), 12_200.1))
    # Other commands do not extend the time for a login.
    begun = 12_300.0
    assert deadlines.missed(Progress(3, login_since=begun), begun + 10) is None
    missed = deadlines.missed(Progress(4, busy=True, login_since=begun), begun + 10.6)
    assert "login" in str(missed)


def test_connections_are_counted_for_each_client() -> None:
    counts = ConnectionCounts(10, exempt=[ip_network("10.0.0.0/8"), ip_network("::1")])
    assert counts.limit_per_client == 8
    for _ in range(8):
        assert counts.admits("1.2.3.4")
        counts.begun("1.2.3.4")
    assert not counts.admits("1.2.3.4")
    assert not counts.admits("::ffff:1.2.3.4")
    counts.begun("2001:db8::1")
    counts.begun("2001:db8::2")
    assert counts.by_client["2001:db8::/64"] == 2
    assert not counts.admits("1.2.3.5")
    assert counts.admits("10.1.2.3")
    assert counts.admits("::ffff:10.1.2.3")
    assert counts.admits("::1")
    for address in ("2001:db8::3", "2001:db8::4", *["1.2.3.4"] * 8):
        counts.ended(address)
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
    with pytest.raises(ValueError, match=r"'10\.0\.0\.0/99' is not an address or a network"):
        load_settings({"net": {"maxIncomingConnectionsOverride": ["10.0.0.0/99"]}})


async def answer(asked: Asked) -> None:
    """Answer as a mongos that leaves each login unfinished."""
    asked.reply({"conversationId": 1, "done": False, "payload": b"", "ok": 1.0})


@asynccontextmanager
async def secured(limits: ClientLimits) -> AsyncIterator[tuple[Facade, FairLimit]]:
    """Listen with authorization; logins are relayed to a scripted mongos."""
    in_progress = FairLimit.of_logins(limits.logins_in_progress)
    own: Any = SimpleNamespace(in_progress=in_progress)

    def login(peer: str, _certificate: object) -> Login:
        return Login(own, peer)

    access: Any = SimpleNamespace(login=login, times=SimpleNamespace(newest=None))
    async with (
        scripted_server(answer) as mongos,
        facade(
            UpstreamMongos([("127.0.0.1", mongos.port)]), access=access, client_limits=limits
        ) as router,
    ):
        yield router, in_progress


async def test_long_messages_before_the_login_end_the_connection() -> None:
    async with secured(ClientLimits(message_size_before_login=2000)) as (router, _):
        async with await router.client() as within:
            assert (await within.command("admin", {**PING, "comment": "x" * 1900}))["ok"]
        async with await router.client() as beyond:
            # The length alone is enough: nothing of the message is awaited.
            beyond.send_bytes(struct.pack("<iiii", 2001, 1, 0, 2013))
            await ends(beyond)


async def test_before_the_login_decompression_stops_at_the_limit() -> None:
    async with secured(ClientLimits()) as (router, _), await router.client() as client:
        body = struct.pack("<IB", 0, 0) + bson.encode({**PING, "$db": "admin", "x": "x" * 20_000})
        packed = struct.pack("<iiB", 2013, len(body), 2) + zlib.compress(body)
        client.send_bytes(struct.pack("<iiii", 16 + len(packed), 1, 0, 2012) + packed)
        await ends(client)


async def test_before_the_login_no_field_opens_a_connection_to_the_upstream() -> None:
    async with secured(ClientLimits()) as (router, _), await router.client() as client:
        reply = await client.command("admin", {**PING, "maxTimeMS": -1})
        assert (reply["code"], reply["errmsg"]) == (2, "mergerouter does not know {maxTimeMS: -1}")
        (connected,) = router.listener._connections
        assert connected.client.links == {}


async def test_a_stalled_login_ends_its_connection() -> None:
    limits = ClientLimits(login_time=SHORT, failed_login_delay=0)
    async with secured(limits) as (router, in_progress), await router.client() as client:
        assert (await client.command("admin", SASL_START))["ok"]
        assert in_progress.held == 1
        await ends(client)
        await until(lambda: in_progress.held == 0)


async def test_logins_in_progress_are_bounded() -> None:
    """One address has half of them; further ones wait until another ends."""
    async with (
        secured(ClientLimits(logins_in_progress=4)) as (router, in_progress),
        AsyncExitStack() as owned,
    ):
        clients = [await owned.enter_async_context(await router.client()) for _ in range(5)]
        for client in clients[:2]:
            assert (await client.command("admin", SASL_START))["ok"]
        for client in clients[2:]:
            client.send("admin", SASL_START)
        other = RawClient(
            *await asyncio.open_connection("127.0.0.1", router.port, local_addr=("127.0.0.2", 0))
        )
        await owned.enter_async_context(other)
        assert (await other.command("admin", SASL_START))["ok"]
        assert in_progress.held == 3
        clients[0].writer.close()
        assert (await clients[2].receive())["ok"]
        clients[3].writer.close()  # it waited for its turn
        clients[1].writer.close()
        assert (await clients[4].receive())["ok"]
        assert in_progress.held == 3
        for client in (clients[2], clients[4], other):
            client.writer.close()
        await until(lambda: in_progress.held == 0)


async def test_addresses_take_turns_to_log_in() -> None:
    in_progress = FairLimit.of_logins(2)
    order: list[str] = []

    async def log_in(address: str) -> None:
        await in_progress.admit(address)
        order.append(address)

    async with asyncio.TaskGroup() as tasks:
        for address in ("a", "a", "a", "b", "b", "c"):
            tasks.create_task(log_in(address))
        for count in range(1, 6):
            await until(lambda count=count: len(order) > count)
            in_progress.release(order[count - 1])
    assert order == ["a", "b", "a", "b", "c", "a"]
