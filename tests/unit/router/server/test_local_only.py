"""Commands that a mongos reserves for local clients are refused to the router's remote clients."""

from typing import Any

import pytest

from router.catalog.upstream import UpstreamMongos
from router.server import listener
from shard_client.wire.connection import is_loopback
from tests.doubles.scripted_server import answer_ok, scripted_server
from tests.harness.facade import facade


def from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "is_loopback", lambda _peername: False)


def upstream(port: int) -> UpstreamMongos:
    return UpstreamMongos([("127.0.0.1", port)])


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
