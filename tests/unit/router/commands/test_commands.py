"""Fields of commands, parameters, and fail points, which are disabled by default."""

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Code, Int64

from router.commands.fail_points import FailPoints
from router.config.log_lines import RECENT
from router.config.settings import load_settings
from router.upstream.server_link import Reachable, ServerLink
from tests.doubles.fake_clusters import OneShard
from tests.doubles.scripted_server import Asked, scripted_server
from tests.harness.facade import WATCH, facade, facade_before


def fail(mode: object, point: str = "failCommand", **data: Any) -> dict[str, Any]:
    return {"configureFailPoint": point, "mode": mode, "data": data}


async def test_fail_points_need_test_commands() -> None:
    async with facade() as router, await router.client() as client:
        reply = await client.command("admin", fail("alwaysOn", failCommands=["ping"]))
        assert reply["code"] == 59


def test_a_router_without_test_commands_does_not_load_fail_points() -> None:
    loaded = "import sys, router.cli, router.workers.worker; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", loaded], text=True).split()
    assert "router.commands.aggregate" in modules
    assert not [name for name in modules if "fail_point" in name]


async def test_a_command_fails_the_requested_number_of_times_with_labels() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        command = fail({"times": 2}, failCommands=["insert"], errorCode=91, errorLabels=["Mine"])
        assert (await client.command("admin", command))["count"] == 0
        for _ in range(2):
            reply = await client.command("db", {"insert": "c"})
            assert (reply["code"], reply["errorLabels"]) == (91, ["Mine"])
        assert (await client.command("db", {"insert": "c"}))["code"] == 59
        assert (await client.command("admin", fail("off")))["count"] == 2


@pytest.mark.parametrize(
    ("command", "code", "labelled"),
    [
        ({"insert": "c", "autocommit": False}, 112, True),
        ({"insert": "c", "autocommit": False}, 91, True),
        ({"insert": "c", "autocommit": False}, 11000, False),
        ({"insert": "c"}, 112, False),
        ({"commitTransaction": 1, "autocommit": False}, 251, True),
        ({"commitTransaction": 1, "autocommit": False}, 91, False),
    ],
)
async def test_a_transaction_s_command_fails_with_the_label_of_its_code(
    command: dict[str, Any], code: int, labelled: bool
) -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        point = fail({"times": 1}, failCommands=[*command][:1], errorCode=code)
        await client.command("admin", point)
        reply = await client.command("admin", command)
        assert reply["code"] == code
        assert reply.get("errorLabels", []) == ["TransientTransactionError"] * labelled


async def test_a_get_more_that_fails_after_checkout_ends_its_cursor() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        cursor_id = (await client.command("db", WATCH))["cursor"]["id"]
        get_more = {"getMore": cursor_id, "collection": "c", "maxTimeMS": 1}
        await client.command("admin", fail({"times": 1}, failCommands=["getMore"], errorCode=91))
        reply = await client.command("db", get_more)
        # mongos recognizes a change stream's getMore only once it has checked out the cursor.
        assert (reply["code"], "errorLabels" in reply) == (91, False)
        assert (await client.command("db", get_more))["ok"] == 1
        await client.command("admin", fail({"times": 1}, "failGetMoreAfterCursorCheckout"))
        reply = await client.command("db", get_more)
        assert (reply["code"], reply["errmsg"]) == (
            1,
            "Hit the 'failGetMoreAfterCursorCheckout' failpoint",
        )
        assert (await client.command("db", get_more))["code"] == 43


async def test_other_tasks_run_between_two_streams_of_a_status() -> None:
    iteration, loop, described_in = 0, asyncio.get_running_loop(), []

    def tick() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(tick)

    def describe() -> Iterator[dict[str, Any]]:
        for _ in range(3):
            described_in.append(iteration)
            yield {"bufferedBytes": 0}

    async with facade() as router, await router.client() as client:
        router.cursors.describe_streams = describe  # type: ignore[method-assign]
        loop.call_soon(tick)
        reply = await client.command("admin", {"serverStatus": 1})
    assert len(reply["mergerouter"]["streams"]) == 3
    assert len(set(described_in)) == 3


async def test_passed_through_commands_fail_before_they_are_sent() -> None:
    async def answer(asked: Asked) -> None:
        asked.reply({"n": 1, "ok": 1.0})

    async with facade_before(answer, fail_points=FailPoints()) as (mongos, _, client):
        await client.command("admin", fail({"times": 1}, failCommands=["insert"], errorCode=10107))
        assert (await client.command("db", {"insert": "c"}))["code"] == 10107
        assert mongos.names() == []
        # Other fail points are set on the upstream.
        await client.command("admin", fail("off", "hangSomewhere"))
        assert mongos.names() == ["configureFailPoint"]
        # It acts on commands that pass through by what the router does not know.
        await client.command("admin", fail("alwaysOn", failCommands=["insert"], errorCode=91))
        unknown = fail("alwaysOn", failCommands=["insert"], writeConcernError={"code": 91})
        assert (await client.command("admin", unknown))["ok"] == 1
        assert (await client.command("db", {"insert": "c"}))["ok"] == 1
        await client.command("admin", fail("off"))
        modes = [each.command.get("mode") for each in mongos.asked[1:]]
        assert modes == ["alwaysOn", None, "off"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({}, "'alwaysOn' or {times: n}"),
        ({"mode": {"skip": 1}}, "'alwaysOn' or {times: n}"),
        ({"mode": {"times": -1}}, "'alwaysOn' or {times: n}"),
        ({"mode": "off", "data": {"writeConcernError": {}}}, "know the data appName"),
    ],
)
async def test_modes_and_data_that_the_router_does_not_know_are_refused(
    command: dict[str, Any], words: str
) -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        reply = await client.command("admin", {"configureFailPoint": "failCommand", **command})
        assert reply["code"] == 2
        assert words in reply["errmsg"]


SETTINGS = load_settings({"setParameter": {"cursorTimeoutMillis": 5}})
OWN = SETTINGS.parameters
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
    async with facade_before(answer, settings=SETTINGS) as (_, _, client):
        reply = await client.command("admin", command)
        assert reply.pop("ok") == 1
        assert {k: v for k, v in reply.items() if k not in ("$clusterTime", "operationTime")} == (
            expected
        )


async def test_parameters_come_from_a_shard_without_an_upstream() -> None:
    async with (
        scripted_server(answer) as shard,
        facade(settings=SETTINGS) as router,
        await router.client() as client,
    ):
        router.process.cluster = OneShard(shard.port)  # type: ignore[assignment]
        reply = await client.command("admin", {"getParameter": 1, "featureFlagX": 1})
        assert reply["featureFlagX"] == FLAG
        reply = await client.command("admin", {"getParameter": "*"})
        assert "featureFlagX" not in reply
        assert reply["cursorTimeoutMillis"] == 5
        reply = await client.command("admin", {"getParameter": 1, "nosuch": 1})
        assert reply["errmsg"] == "no option found to get"

        async def cut(asked: Asked) -> None:
            asked.writer.transport.abort()

        async with scripted_server(cut) as broken:
            router.process.cluster = OneShard(broken.port)  # type: ignore[assignment]
            reply = await client.command("admin", {"getParameter": 1, "featureFlagX": 1})
        assert reply["code"] == 6, "only a server's connection has ended, not the client's"


async def test_a_client_whose_login_at_the_upstream_is_lost_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def link_that_has_ended(server: Reachable) -> ServerLink:
        link = ServerLink(server)
        link.pin()
        return link

    monkeypatch.setattr("router.commands.client.ServerLink", link_that_has_ended)
    async with facade_before(answer) as (_, _, client):
        with pytest.raises(EOFError):  # a driver keeps a connection that has error replies
            await client.command("admin", {"getParameter": 1, "featureFlagX": 1})


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"killCursors": 5, "cursors": []}, 2),
        ({"killCursors": "c", "cursors": 5}, 14),
        ({"hello": 1, "maxAwaitTimeMS": -5}, 51024),
        ({"hello": 1, "topologyVersion": {"counter": Int64(0)}, "maxAwaitTimeMS": 1}, 40414),
        ({"ping": 1, "apiVersion": Code("1")}, 14),
        ({"getLog": Code("global")}, 14),
        ({"endSessions": [{}]}, 40414),
    ],
)
async def test_fields_that_mongos_refuses_with_another_code_are_refused(
    command: dict[str, Any], code: int
) -> None:
    async with facade() as router, await router.client() as client:
        assert (await client.command("admin", command))["code"] == code


async def test_lines_logged_at_one_time_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['{"t": {"$date": "2"}, "n": 1}', '{"t": {"$date": "2"}, "n": 0}']
    earlier = '{"t": {"$date": "1"}, "n": 2}'
    monkeypatch.setattr(RECENT, "lines", deque([*lines, earlier]))
    async with facade() as router, await router.client() as client:
        reply = await client.command("admin", {"getLog": "global"})
    assert [line for line in reply["log"] if line in (*lines, earlier)] == [earlier, *lines]


async def test_a_deeply_nested_document_is_an_error() -> None:
    deep = b""
    for _ in range(10_000):
        content = b"\3a\0" + deep if deep else b""
        deep = (len(content) + 5).to_bytes(4, "little") + content + b"\0"
    body = b"\x10ping\0\1\0\0\0\3x\0" + deep + b"\2$db\0\6\0\0\0admin\0"
    document = (len(body) + 5).to_bytes(4, "little") + body + b"\0"
    frame = (21 + len(document)).to_bytes(4, "little") + b"\1\0\0\0\0\0\0\0\xdd\7\0\0\0\0\0\0\0"
    async with facade() as router, await router.client() as client:
        client.send_bytes(frame + document)
        assert "nests deeper than 200 levels" in (await client.receive())["errmsg"]
        async with await router.client() as other:
            assert (await other.command("admin", {"ping": 1}))["ok"] == 1
