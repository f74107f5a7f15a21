"""Commands that the router answers by itself, compared with mongos's recorded answers."""

from datetime import datetime
from typing import Any

import pytest
from bson import Int64, ObjectId

from router.commands.server_identity import ServerIdentity
from router.config.settings import load_settings
from tests.harness.facade import facade
from tests.recordings.likeness import assert_same
from tests.recordings.recorded import cases

ALONE = [
    "hello",
    "isMaster",
    "isMaster-helloOk",
    "hello-client",
    "hello-speculative-bad",
    "ping",
    "buildInfo",
    "connectionStatus",
    "getCmdLineOpts",
    "getParameter-all-test",
    "whatsmyuri",
    "atlasVersion",
    "replSetGetStatus",
    "startSession",
    "refreshSessions",
    "endSessions",
    "unknown-command",
    "killCursors-none",
    "getMore-unknown",
    "getMore-badtype",
    "getMore-int32",
    "unknown-field-hello",
]
REFUSED = [
    name
    for name, case in cases().items()
    if len(case.get("steps", ())) == 1
    and "aggregate" in case["steps"][0]["command"]
    and case["steps"][0]["reply"]["ok"] == 0
    # Cases that need a cluster, and commands that go to the upstream.
    and name not in ("on-view", "passthrough-unknown", "aggregate-no-cursor")
    and name not in ("aggregate-unknown-field", "bad-match", "bad-match-type")
]

_FLAGS = {
    "sharding": {"configDB": "cfg/127.0.0.1:27400"},
    "net": {"port": 27450, "bindIp": "127.0.0.1"},
    "setParameter": {
        "enableTestCommands": "1",
        "mongosShutdownTimeoutMillisForSignaledShutdown": "0",
    },
}


def recorded_node() -> dict[str, Any]:
    settings = load_settings(_FLAGS)
    identity = ServerIdentity.of_server(
        {"maxWireVersion": 17}, {"version": "6.0.15", "versionArray": [6, 0, 15, 0]}
    )
    return {
        "identity": identity,
        "options": settings.given(),
        "parameters": settings.parameters,
        "arguments": ["mergerouter"],
    }


@pytest.mark.parametrize("name", ALONE)
async def test_answers_are_those_of_mongos(name: str) -> None:
    case = cases()[name]
    async with facade(**recorded_node()) as router, await router.client() as client:
        await client.command("admin", {"hello": 1})
        for step in case["steps"]:
            reply = await client.command(case["db"], step["command"])
            assert_same(dict(reply), step["reply"])


@pytest.mark.parametrize("name", REFUSED)
async def test_refusals_are_those_of_mongos(name: str) -> None:
    case = cases()[name]
    step = case["steps"][0]
    async with facade(**recorded_node()) as router, await router.client() as client:
        reply = await client.command(case["db"], step["command"])
        assert_same(dict(reply), step["reply"])
        assert not router.cursors.opened


async def test_a_stream_s_replies_have_mongos_s_fields() -> None:
    case = cases()["nonexistent-coll"]
    opening, reading = case["steps"]
    async with facade(**recorded_node()) as router, await router.client() as client:
        reply = await client.command(case["db"], opening["command"])
        assert list(reply) == list(opening["reply"])
        assert list(reply["cursor"]) == list(opening["reply"]["cursor"])
        assert reply["cursor"]["ns"] == opening["reply"]["cursor"]["ns"]
        command = {**reading["command"], "getMore": reply["cursor"]["id"], "maxTimeMS": 1}
        reply = await client.command(case["db"], command)
        assert list(reply) == list(reading["reply"])
        assert list(reply["cursor"]) == list(reading["reply"]["cursor"])


async def test_get_more_checks_its_fields_and_api_as_mongos_does() -> None:
    negative = cases()["getMore-negative-batch"]["steps"][0]
    wrong = cases()["getMore-wrong-collection"]["steps"][0]
    strict, mismatch = cases()["apiStrict"]["steps"]
    async with facade(**recorded_node()) as router, await router.client() as client:
        reply = await client.command("rec", strict["command"])
        command = {**mismatch["command"], "getMore": reply["cursor"]["id"]}
        assert_same(dict(await client.command("rec", command)), mismatch["reply"])
        open_stream = cases()["nonexistent-coll"]["steps"][0]["command"]
        reply = await client.command("rec", open_stream)
        cursor_id = reply["cursor"]["id"]
        command = {**negative["command"], "getMore": cursor_id}
        assert_same(dict(await client.command("rec", command)), negative["reply"])
        command = {**wrong["command"], "getMore": cursor_id, "maxTimeMS": 1}
        reply = await client.command("rec", command)
        assert reply["cursor"]["ns"] == wrong["reply"]["cursor"]["ns"]


async def test_kill_cursors_lists_killed_and_missing_cursors() -> None:
    recorded = cases()["killCursors"]["steps"][0]["reply"]
    gone = cases()["getMore-after-kill"]["steps"][0]["reply"]
    async with facade(**recorded_node()) as router, await router.client() as client:
        opening = cases()["nonexistent-coll"]["steps"][0]["command"]
        cursor_id = (await client.command("rec", opening))["cursor"]["id"]
        command = {"killCursors": "flat", "cursors": [cursor_id, Int64(99)]}
        reply = await client.command("rec", command)
        assert list(reply) == list(recorded)
        assert reply["cursorsKilled"] == [cursor_id]
        assert reply["cursorsNotFound"] == [99]
        reply = await client.command("rec", {"getMore": cursor_id, "collection": "flat"})
        assert list(reply) == list(gone)
        assert (reply["code"], reply["codeName"]) == (gone["code"], gone["codeName"])
        assert reply["errmsg"] == f"Cursor not found (id: {cursor_id})."


async def test_server_status_has_the_fields_that_tools_read() -> None:
    recorded = cases()["serverStatus"]["steps"][0]["reply"]
    async with facade(**recorded_node()) as router, await router.client() as client:
        reply = await client.command("admin", {"serverStatus": 1})
        shared = [name for name in recorded if name in reply]
        assert shared == [name for name in reply if name in recorded]
        assert {"host", "version", "process", "uptime", "connections", "opcounters"} <= set(shared)
        assert reply["connections"]["current"] == 1
        assert isinstance(reply["localTime"], datetime)
        assert "mem" not in await client.command("admin", {"serverStatus": 1, "mem": 0})


async def test_replies_have_no_cluster_time_before_one_is_known() -> None:
    async with facade() as router, await router.client() as client:
        router.node.clock = type(router.node.clock)()
        reply = await client.command("admin", {"hello": 1})
        assert "$clusterTime" not in reply
        assert isinstance(reply["topologyVersion"]["processId"], ObjectId)
