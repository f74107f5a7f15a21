"""Large messages block no other client: they are refused undecoded or handled off the loop."""

import threading
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from bson import Int64
from structlog.testing import capture_logs

from router.privileges import User, UserName
from router.server import client_connection, client_message
from shard_client.wire.frames import compress_frame
from tests.doubles.fake_cursors import event
from tests.doubles.scripted_server import answer_ok
from tests.harness.facade import WATCH, facade, facade_before

LIMIT = 16 * 1024 * 1024 + 16 * 1024


def undecodable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decode(_body: bytes, _turn: object) -> dict[str, Any]:
        raise AssertionError("decoded")

    monkeypatch.setattr(client_message, "decode_gradually", decode)


async def test_a_body_beyond_the_limit_is_refused_undecoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undecodable(monkeypatch)
    async with facade() as router, await router.client() as client:
        for command, first in (({"ping": 1}, "ping: 1"), (WATCH, 'aggregate: "c"')):
            empty = len(bson.encode({**command, "comment": "", "$db": "admin"}))
            pad = "x" * (LIMIT + 1 - empty)
            reply = await client.command("admin", {**command, "comment": pad})
            assert (reply["code"], reply["codeName"]) == (10334, "BSONObjectTooLarge")
            assert reply["errmsg"] == (
                "BSONObj size: 16793601 (0x1004001) is invalid. Size must be between 0 and "
                f"16793600(16MB) First element: {first}"
            )


async def test_only_change_streams_are_accepted_as_large_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with facade() as router, await router.client() as client:
        pad = "x" * client_message.MOST_OWN
        pipeline = [*WATCH["pipeline"], {"$match": {"a": pad}}]
        reply = await client.command("db", {**WATCH, "pipeline": pipeline})
        assert reply["cursor"]["id"]
        undecodable(monkeypatch)
        for command in ({"ping": 1}, WATCH, {"explain": WATCH}):
            reply = await client.command("db", {**command, "comment": pad})
            assert (reply["code"], reply["codeName"]) == (10334, "BSONObjectTooLarge")
            assert "1048576 at most" in reply["errmsg"]


async def test_an_error_quotes_little_of_a_large_value() -> None:
    async with facade() as router, await router.client() as client:
        for stage in ({"$changeStream": list(range(500_000))}, {"x" * 1_000_000: 1}):
            reply = await client.command("db", {**WATCH, "pipeline": [*WATCH["pipeline"], stage]})
            assert not reply["ok"]
            assert len(reply["errmsg"]) < 100_000


@pytest.mark.parametrize(
    "stage",
    [
        {"$match": {"a": {"$in": list(range(1_000_000))}}},
        {"$match": {"a": {str(number): {"b": [None]} for number in range(200_000)}}},
    ],
)
@pytest.mark.parametrize("explained", [False, True])
async def test_a_large_stream_of_a_user_without_rights_is_refused_undecoded(
    monkeypatch: pytest.MonkeyPatch, stage: dict[str, Any], explained: bool
) -> None:
    user = User(UserName("alice", "db"))
    login = SimpleNamespace(user=user, begun_at=None, close=lambda: None)
    monkeypatch.setattr("router.server.listener.Login", lambda *_: login)
    access: Any = SimpleNamespace(times=SimpleNamespace(newest=(None, None)))
    command = {**WATCH, "pipeline": [*WATCH["pipeline"], stage]}
    if explained:
        command = {"explain": command}
    async with facade(access=access) as router, await router.client() as client:
        assert (await client.command("admin", {"ping": 1}))["ok"] == 1  # as one that is logged in
        undecodable(monkeypatch)
        with capture_logs() as logged:
            reply = await client.command("db", command)
        assert reply["code"] == 13
        first = "not authorized on db to execute command { "
        first += "explain: { aggregate" if explained else "aggregate"
        assert reply["errmsg"].startswith(f'{first}: "c", pipeline: [ {{ $changeStream: {{}} }}, ')
        assert len(reply["errmsg"]) < 20_000
        (line,) = [each for each in logged if each.get("id") == 20436]
        assert len(line["error"]["errmsg"]) <= 1024


async def test_a_stream_with_too_many_stages_is_refused_undecoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undecodable(monkeypatch)
    async with facade() as router, await router.client() as client:
        pipeline = [*WATCH["pipeline"], *[{"$match": {}}] * 500_000]
        reply = await client.command("db", {**WATCH, "pipeline": pipeline})
        assert (reply["code"], reply["errmsg"]) == (
            9,
            "Pipeline length must be no longer than 1000 stages",
        )


async def test_passed_through_messages_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    undecodable(monkeypatch)
    documents = [{"_id": number, "pad": "x" * 100_000} for number in range(30)]
    commands: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"insert": "c"}, {"sequences": {"documents": documents}}),
        ({"insert": "c", "documents": documents}, {}),
        ({"aggregate": "c", "pipeline": [{"$match": {"a": "x" * 3_000_000}}], "cursor": {}}, {}),
        ({"explain": {"aggregate": "c", "pipeline": [{"$match": {}}], "cursor": {}}}, {}),
        ({"explain": {"find": "c"}}, {}),
    ]
    async with facade_before(answer_ok) as (_, _, client):
        for command, how in commands:
            assert (await client.command("db", command, **how))["n"] == next(iter(command))


async def test_large_replies_are_packed_off_the_loop_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with facade() as router, await router.client() as client:
        cursor_id: Int64 = (await client.command("db", WATCH))["cursor"]["id"]
        router.cursors.cursors[cursor_id].put(event(1, 4_000_000), event(2))
        on_the_loop: list[bool] = []

        def compress(*arguments: Any) -> bytes:
            on_the_loop.append(threading.current_thread() is threading.main_thread())
            return compress_frame(*arguments)

        monkeypatch.setattr(client_connection, "compress_frame", compress)
        command = {"getMore": cursor_id, "collection": "c", "batchSize": 1}
        asked = [client.send("db", command, compressed=True) for _ in range(2)]
        asked.append(client.send("admin", {"ping": 1}, compressed=True))
        answers = [await client.receive() for _ in asked]
        assert [each.response_to for each in answers] == asked
        assert [each["cursor"]["nextBatch"][0]["n"] for each in answers[:2]] == [1, 2]
        assert on_the_loop == [False, True, True]


async def test_a_flood_of_sections_is_refused() -> None:
    async with facade() as router, await router.client() as client:
        sequences: dict[str, list[dict[str, Any]]] = {f"s{number}": [] for number in range(200)}
        reply = await client.command("admin", {"ping": 1}, sequences=sequences)
        assert "more than 100 sections" in reply["errmsg"]
        assert await client.closed()
