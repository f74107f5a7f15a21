"""Logins, right and wrong: the router answers them as mongos does, and keeps secrets."""

from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import on_real_servers
from tests.harness.raw_client import RawClient
from tests.integration.security.clients import Servers, client, port_of, stream


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param("SCRAM-SHA-1", marks=on_real_servers("SCRAM-SHA-1")), "SCRAM-SHA-256"],
)
@pytest.mark.parametrize("kind", ["router", "alone"])
def test_each_mechanism_logs_in(servers: Servers, kind: str, mechanism: str) -> None:
    address = getattr(servers, kind)
    with client(address, "reader", authMechanism=mechanism) as reader:
        status = reader.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        assert status["authenticatedUsers"] == [{"user": "reader", "db": "admin"}]
        assert status["authenticatedUserRoles"] == [{"role": "read", "db": "db"}]
        resources = [each["resource"] for each in status["authenticatedUserPrivileges"]]
        assert {"db": "db", "collection": ""} in resources
        with reader.db.c.watch(max_await_time_ms=200) as watching:
            with client(servers.mongos, "writer") as writer:
                inserted = writer.db.c.insert_one({}).inserted_id
            assert watching.next()["documentKey"] == {"_id": inserted}
    wrong = {"username": "reader", "password": "x", "authMechanism": mechanism}
    with (
        pymongo.MongoClient(f"mongodb://{address}/", **wrong) as refused,
        pytest.raises(OperationFailure, match="Authentication failed") as failure,
    ):
        refused.admin.command("ping")
    assert failure.value.code == 18


LOGIN: dict[str, Any] = {"saslStart": 1, "mechanism": "SCRAM-SHA-256"}
FIRST = b"n,,n=reader,r=0123456789abcdefghijklmnopqrstuv"
UNKNOWN = FIRST.replace(b"reader", b"stranger")
HANDSHAKE: list[tuple[str, dict[str, Any]]] = [
    ("admin", {"saslStart": 1}),
    ("admin", LOGIN),
    ("admin", {**LOGIN, "mechanism": "X", "payload": b""}),
    ("admin", {**LOGIN, "mechanism": 7, "payload": b""}),
    ("admin", {**LOGIN, "payload": b""}),
    ("admin", {**LOGIN, "payload": b"n,,n=reader,r=short"}),
    ("admin", {**LOGIN, "payload": UNKNOWN}),
    ("admin", {**LOGIN, "payload": b"x" * 10_000}),
    ("admin", {**LOGIN, "payload": FIRST, "bad": 1}),
    ("admin", {"saslContinue": 1}),
    ("admin", {"saslContinue": 1, "conversationId": 1, "payload": b""}),
    ("admin", {"logout": 1}),
    ("admin", {"hello": 1, "saslSupportedMechs": "admin.reader"}),
    ("admin", {"hello": 1, "saslSupportedMechs": "admin.stranger"}),
    ("admin", {"hello": 1, "saslSupportedMechs": 5}),
    ("admin", {"hello": 1, "saslSupportedMechs": "x"}),
    ("admin", {"hello": 1, "speculativeAuthenticate": 5}),
    (
        "admin",
        {"hello": 1, "speculativeAuthenticate": {**LOGIN, "payload": UNKNOWN, "db": "admin"}},
    ),
]
COMPARED = ("ok", "code", "codeName", "errmsg", "saslSupportedMechs", "speculativeAuthenticate")


@on_real_servers("checks of malformed logins")
@pytest.mark.parametrize("kind", ["router", "alone"])
async def test_handshakes_get_mongos_s_answers(servers: Servers, kind: str) -> None:
    answers = []
    for address in (servers.mongos, getattr(servers, kind)):
        async with await RawClient.connect(port_of(address)) as raw:
            replies = [await raw.command(*each) for each in HANDSHAKE]
        for each in replies:  # mongod and mongos name them in different orders
            each.get("saslSupportedMechs", []).sort()
        answers.append([{name: each.get(name) for name in COMPARED} for each in replies])
    assert answers[1] == answers[0]


@pytest.mark.parametrize("kind", ["router", "alone"])
async def test_before_the_login_nothing_is_answered(servers: Servers, kind: str) -> None:
    commands: list[tuple[str, dict[str, Any]]] = [
        ("db", {"find": "c"}),
        ("db", {"insert": "c", "documents": [{}]}),
        ("db", {"aggregate": "c", "pipeline": [], "cursor": {}}),
        ("db", stream("c")),
        ("admin", {"listDatabases": 1}),
        ("admin", {"serverStatus": 1}),
    ]
    answers = []
    for address in (servers.mongos, getattr(servers, kind)):
        async with await RawClient.connect(port_of(address)) as raw:
            replies = [await raw.command(*each) for each in commands]
        answers.append([{name: each.get(name) for name in COMPARED} for each in replies])
    assert answers[1] == answers[0]
    assert {each["code"] for each in answers[1]} == {13}


@on_real_servers("checks of malformed logins")
@pytest.mark.parametrize("kind", ["router", "alone"])
async def test_wrong_login_steps_get_mongos_s_answers(servers: Servers, kind: str) -> None:
    """A wrong nonce, a wrong proof, a replayed step and a foreign conversation."""
    final = b"c=biws,r=%s,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    answers = []
    for address in (servers.mongos, getattr(servers, kind)):
        replies = []
        for nonce_added, conversation in ((b"", 1), (b"x", 1), (b"", 9)):
            async with await RawClient.connect(port_of(address)) as raw:
                first = await raw.command("admin", {**LOGIN, "payload": FIRST})
                assert first["ok"]
                assert not first["done"]
                nonce = bytes(first["payload"]).split(b",")[0].removeprefix(b"r=")
                step = {
                    "saslContinue": 1,
                    "conversationId": conversation,
                    "payload": final % (nonce + nonce_added),
                }
                replies += [await raw.command("admin", step) for _ in range(2)]
                replies.append(await raw.command("db", stream("c")))
        answers.append([{name: each.get(name) for name in COMPARED} for each in replies])
    assert answers[1] == answers[0]
    assert {each["code"] for each in answers[1]} == {13, 17, 18}


def test_secrets_are_shown_nowhere(servers: Servers, key_file: Path) -> None:
    key = key_file.read_text()
    with client(servers.router, "root") as root:
        shown = str(root.admin.command("getCmdLineOpts"))
        shown += str(root.admin.command("getLog", "global"))
        shown += str(root.admin.command("serverStatus"))
    assert "passwordFile" in shown
    assert "swordfish" not in shown
    assert key[:20] not in shown
