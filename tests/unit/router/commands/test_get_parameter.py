"""getParameter: the router's own parameters first, all others from a server."""

from typing import Any

import pytest

from router.catalog.upstream import UpstreamMongos
from tests.doubles.fake_clusters import OneShard
from tests.doubles.scripted_server import Asked, scripted_server
from tests.harness.facade import facade

OWN = {"cursorTimeoutMillis": 5, "enableTestCommands": False, "noopWrites": True}
FLAG = {"value": True, "version": "6.0"}
THEIRS = {"featureFlagX": FLAG, "logLevel": 3, "cursorTimeoutMillis": 600_000}
LOG = {"logLevel": 0, "logComponentVerbosity": {"verbosity": 0}}
NOTHING = {"ok": 0.0, "errmsg": "no option found to get"}


async def answer(asked: Asked) -> None:
    command = asked.command
    everything = command["getParameter"] == "*"
    found = {name: value for name, value in THEIRS.items() if everything or name in command}
    asked.reply({**found, "ok": 1.0} if found else NOTHING)


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"getParameter": 1, "cursorTimeoutMillis": 1}, {"cursorTimeoutMillis": 5}),
    ({"getParameter": 1, "featureFlagX": 1}, {"featureFlagX": FLAG}),
    (
        {"getParameter": 1, "featureFlagX": 1, "enableTestCommands": 1, "nosuch": 1},
        {"featureFlagX": FLAG, "enableTestCommands": False},
    ),
    ({"getParameter": "*"}, {**THEIRS, **OWN, **LOG}),
    ({"getParameter": 1, "logLevel": 1}, {"logLevel": 0}),
    (
        {"getParameter": {"showDetails": True}, "enableTestCommands": 1},
        {
            "enableTestCommands": {
                "value": False,
                "settableAtRuntime": False,
                "settableAtStartup": True,
            }
        },
    ),
]


@pytest.mark.parametrize(("command", "expected"), CASES)
async def test_parameters_of_the_router_and_the_upstream_are_returned(
    command: dict[str, Any], expected: dict[str, Any]
) -> None:
    async with (
        scripted_server(answer) as mongos,
        facade(UpstreamMongos([("127.0.0.1", mongos.port)]), parameters=OWN) as router,
        await router.client() as client,
    ):
        reply = await client.command("admin", command)
        assert reply.pop("ok") == 1
        assert {k: v for k, v in reply.items() if k not in ("$clusterTime", "operationTime")} == (
            expected
        )


async def test_parameters_come_from_a_shard_without_an_upstream() -> None:
    async with (
        scripted_server(answer) as shard,
        facade(parameters=OWN) as router,
        await router.client() as client,
    ):
        router.node.cluster = OneShard(shard.port)  # type: ignore[assignment]
        reply = await client.command("admin", {"getParameter": 1, "featureFlagX": 1})
        assert reply["featureFlagX"] == FLAG
        reply = await client.command("admin", {"getParameter": "*"})
        assert "featureFlagX" not in reply
        assert reply["cursorTimeoutMillis"] == 5
        reply = await client.command("admin", {"getParameter": 1, "nosuch": 1})
        assert reply["errmsg"] == "no option found to get"
