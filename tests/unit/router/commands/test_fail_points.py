"""Fail points are disabled by default; once enabled, they work as drivers' tests expect."""

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
