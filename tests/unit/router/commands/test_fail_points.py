"""Fail points: off unless asked for, and then as drivers' tests expect them."""

from typing import Any

import pytest

from router.commands.fail_points import FailPoints
from tests.harness.facade import facade

WATCH: dict[str, Any] = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}


def fail(mode: object, point: str = "failCommand", **data: Any) -> dict[str, Any]:
    return {"configureFailPoint": point, "mode": mode, "data": data}


async def test_there_are_none_unless_tests_are_enabled() -> None:
    async with facade() as router, await router.client() as client:
        reply = await client.command("admin", fail("alwaysOn", failCommands=["ping"]))
        assert reply["code"] == 59


async def test_a_command_fails_as_often_as_asked_with_the_labels_asked_for() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        command = fail({"times": 2}, failCommands=["insert"], errorCode=91, errorLabels=["Mine"])
        assert (await client.command("admin", command))["count"] == 0
        for _ in range(2):
            reply = await client.command("db", {"insert": "c"})
            assert (reply["code"], reply["errorLabels"]) == (91, ["Mine"])
        assert (await client.command("db", {"insert": "c"}))["code"] == 59
        assert (await client.command("admin", fail("off")))["count"] == 2


async def test_skipped_passes_do_not_fail() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        await client.command("admin", fail({"skip": 1}, failCommands=["ping"], errorCode=8))
        replies = [await client.command("admin", {"ping": 1}) for _ in range(3)]
        assert [reply.get("code") for reply in replies] == [None, 8, 8]


async def test_only_the_named_application_fails() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as admin:
        point = fail("alwaysOn", failCommands=["hello"], errorCode=8, appName="victim")
        await admin.command("admin", point)
        for name, code in (("victim", 8), ("bystander", None)):
            async with await router.client() as client:
                hello = {"hello": 1, "client": {"application": {"name": name}}}
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


async def test_an_unknown_mode_is_refused() -> None:
    async with facade(fail_points=FailPoints()) as router, await router.client() as client:
        assert (await client.command("admin", fail("sometimes")))["code"] == 2
