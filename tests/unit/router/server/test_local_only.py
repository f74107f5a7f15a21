"""Commands that a mongos reserves for local clients are refused to the router's remote clients."""

from typing import Any

import pytest

from router.catalog.upstream import UpstreamMongos
from router.commands.administration import LOCAL_ONLY
from router.server import listener
from shard_client.wire import connection
from shard_client.wire.connection import is_loopback
from tests.doubles.scripted_server import answer_ok, scripted_server
from tests.harness.facade import facade


def from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "is_loopback", lambda _peername: False)


def upstream(port: int) -> UpstreamMongos:
    return UpstreamMongos([("127.0.0.1", port)])


@pytest.mark.parametrize("name", sorted(LOCAL_ONLY))
async def test_remote_clients_cannot_run_local_commands(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_elsewhere(monkeypatch)
    async with (
        scripted_server(answer_ok) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        reply = await client.command("admin", {name: 1})
        assert (reply["code"], reply["codeName"]) == (13, "Unauthorized")
        assert reply["errmsg"].startswith(f"{name} must run from localhost: ")
        assert (await client.command("db", {"insert": "c"}))["n"] == "insert"
        assert mongos.names() == ["insert"]


@pytest.mark.parametrize("name", sorted(LOCAL_ONLY))
async def test_local_clients_can_run_local_commands(name: str) -> None:
    async with (
        scripted_server(answer_ok) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        assert (await client.command("admin", {name: 1}))["n"] == name


async def test_a_remote_upstream_decides_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from_elsewhere(monkeypatch)
    monkeypatch.setattr(connection, "is_loopback", lambda _peername: False)
    async with (
        scripted_server(answer_ok) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        assert (await client.command("admin", {"createUser": "u"}))["n"] == "createUser"


@pytest.mark.parametrize("remote", [False, True])
async def test_no_client_can_shut_down_the_upstream(
    remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if remote:
        from_elsewhere(monkeypatch)
    async with (
        scripted_server(answer_ok) as mongos,
        facade(upstream(mongos.port)) as router,
        await router.client() as client,
    ):
        for command in ({"shutdown": 1}, {"shutdown": 1, "force": True}):
            reply = await client.command("admin", command)
            if remote:
                expected = (13, "shutdown must run from localhost when running db without auth")
                assert (reply["code"], reply["errmsg"]) == expected
            else:
                assert reply["code"] == 20
                assert "SIGTERM" in reply["errmsg"]
        reply = await client.command("db", {"shutdown": 1})
        assert reply["errmsg"] == "shutdown may only be run against the admin database."
        assert not mongos.asked


@pytest.mark.parametrize(
    ("peername", "local"),
    [
        (("127.0.0.1", 5), True),
        (("127.8.0.1", 5), True),
        (("::1", 5, 0, 0), True),
        (("::ffff:127.0.0.1", 5, 0, 0), True),
        (("10.0.0.1", 5), False),
        (("::ffff:10.0.0.1", 5, 0, 0), False),
        (("fe80::1%eth0", 5, 0, 2), False),
        (("example", 5), False),
        ("", False),
        (None, False),
    ],
)
def test_loopback_addresses_are_local(peername: Any, local: bool) -> None:
    assert is_loopback(peername) is local
