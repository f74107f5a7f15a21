"""Fail points are disabled by default; once enabled, they work as drivers' tests expect."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from router.catalog.upstream import UpstreamMongos
from router.commands.fail_points import FailPoints
from tests.doubles.scripted_server import Asked, scripted_server
from tests.harness.facade import facade

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}


def fail(mode: object, point: str = "failCommand", **data: Any) -> dict[str, Any]:
    return {"configureFailPoint": point, "mode": mode, "data": data}


async def test_fail_points_need_test_commands() -> None:
    async with facade() as router, await router.client() as client:
        reply = await client.command("admin", fail("alwaysOn", failCommands=["ping"]))
        assert reply["code"] == 59


def test_a_router_without_test_commands_does_not_load_fail_points() -> None:
    loaded = "import sys, router.cli, router.workers.worker; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", loaded], text=True).split()
    assert "router.commands.table" in modules
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


async def test_only_the_named_application_fails() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as admin:
        point = fail("alwaysOn", failCommands=["hello"], errorCode=8, appName="victim")
        await admin.command("admin", point)
        for name, code in (("victim", 8), ("bystander", None)):
            async with await router.client() as client:
                metadata = {"driver": {"name": "x", "version": "1"}, "os": {"type": "x"}}
                hello = {"hello": 1, "client": {**metadata, "application": {"name": name}}}
                assert (await client.command("admin", hello)).get("code") == code


async def test_a_connection_can_be_closed() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        point = fail({"times": 1}, failCommands=["ping"], closeConnection=True)
        await client.command("admin", point)
        client.send("admin", {"ping": 1})
        with pytest.raises(EOFError):
            await client.receive()


async def test_get_more_fails_with_the_label_of_its_code() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        cursor_id = (await client.command("db", WATCH))["cursor"]["id"]
        point = fail({"times": 1}, "failGetMoreAfterCursorCheckout", errorCode=262)
        await client.command("admin", point)
        reply = await client.command("db", {"getMore": cursor_id, "collection": "c"})
        assert (reply["code"], reply["errorLabels"]) == (262, ["ResumableChangeStreamError"])


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


@pytest.mark.parametrize(
    ("command", "labels"),
    [
        (WATCH, ["ResumableChangeStreamError"]),
        ({"aggregate": "c", "pipeline": [], "cursor": {}}, None),
    ],
)
async def test_default_labels_are_those_of_mongos(
    command: dict[str, Any], labels: list[str] | None
) -> None:
    names = ["aggregate"]
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        await client.command("admin", fail("alwaysOn", failCommands=names, errorCode=11602))
        assert (await client.command("admin", command)).get("errorLabels") == labels
        point = fail("alwaysOn", failCommands=names, errorCode=11602, errorLabels=[])
        await client.command("admin", point)
        assert "errorLabels" not in await client.command("admin", command)


async def test_blocking_delays() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        point = fail("alwaysOn", failCommands=["ping"], blockConnection=True, blockTimeMS=50)
        await client.command("admin", point)
        loop = asyncio.get_running_loop()
        start = loop.time()
        assert (await client.command("admin", {"ping": 1}))["ok"] == 1
        assert loop.time() - start >= 0.05


async def test_passed_through_commands_fail_before_they_are_sent() -> None:
    async def answer(asked: Asked) -> None:
        asked.reply({"n": 1, "ok": 1.0})

    async with (
        scripted_server(answer) as mongos,
        facade(UpstreamMongos([("127.0.0.1", mongos.port)]), fail_points=FailPoints()) as router,
        await router.client() as client,
    ):
        await client.command("admin", fail({"times": 1}, failCommands=["insert"], errorCode=10107))
        assert (await client.command("db", {"insert": "c"}))["code"] == 10107
        assert mongos.names() == []
        # Other fail points are set on the upstream.
        await client.command("admin", fail("off", "hangSomewhere"))
        assert mongos.names() == ["configureFailPoint"]


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


async def test_an_unknown_fail_point_is_an_error() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        reply = await client.command("admin", fail("off", "hangSomewhere"))
        assert (reply["code"], reply["codeName"]) == (266, "FailPointSetFailed")
        assert reply["errmsg"] == "hangSomewhere not found"
