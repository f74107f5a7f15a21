"""Logins on real servers with a key file."""

import base64
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pymongo
import pytest
from bson import Binary, Int64, ObjectId, Timestamp
from pymongo.errors import OperationFailure
from structlog.testing import capture_logs

from router.catalog.cluster import CONFIG, Cluster
from shard_client.errors import CommandError
from shard_client.replica_set.motor_control import NO_PRIMARY
from shard_client.wire.access import Access
from shard_client.wire.authentication import Credentials, read_key_file
from shard_client.wire.connection import Connection
from tests.harness.clusters import Client, RealCluster, start_real_cluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router
from tests.harness.server_settings import ServerSettings
from tests.harness.until import PATIENCE


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("security") / "key"
    path.write_text(base64.b64encode(secrets.token_bytes(96)).decode())
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def secured(key_file: Path) -> Iterator[RealCluster]:
    """Two shards; users of graded rights."""
    with start_real_cluster(2, settings=ServerSettings(noop_interval=1, key_file=key_file)) as real:
        yield real


async def test_a_member_by_key_file(secured: RealCluster, key_file: Path) -> None:
    cluster = Cluster(secured.configdb, access=Access(read_key_file(key_file)))
    try:
        assert (await cluster.shards()).hosts == secured.shards
        for target in (*secured.shards, CONFIG):
            connection = await cluster.connect(target)
            status = await connection.command("admin", {"connectionStatus": 1}, timeout=5)
            assert status["authInfo"]["authenticatedUsers"] == [{"user": "__system", "db": "local"}]
            cluster.release(connection)
    finally:
        await cluster.close()


async def test_the_driver_logs_in_too(secured: RealCluster, key_file: Path) -> None:
    cluster = Cluster(secured.configdb, access=Access(read_key_file(key_file)))
    try:
        await cluster.shards()
        replica_set = cluster.replica_set("shard0")
        assert replica_set is not None
        primary = await replica_set.primary(10)
        # The driver asks the primary again, with a query that takes a login, and selects it.
        replica_set.invalidate(primary)
        with capture_logs() as logged:
            assert await replica_set.primary(5) == primary
        assert NO_PRIMARY not in [line["event"] for line in logged]
    finally:
        await cluster.close()


async def test_a_wrong_key(secured: RealCluster) -> None:
    wrong = Credentials("__system", "local", ("d3JvbmcK",))
    cluster = Cluster(secured.configdb, access=Access(wrong))
    try:
        with pytest.raises(CommandError, match=r"cannot log in to 127.0.0.1:.* as __system@local"):
            await cluster.shards()
    finally:
        await cluster.close()


USERS: dict[str, list[Any]] = {
    "reader": [{"role": "read", "db": "db"}],
    "everywhere": ["readAnyDatabase"],
    "writer": [{"role": "readWrite", "db": "db"}],
    "nobody": [],
    "monitor": ["clusterMonitor"],
    "admin": ["clusterAdmin"],
    "host": ["hostManager"],
}
STREAM: list[dict[str, Any]] = [{"$changeStream": {}}]
WHOLE_CLUSTER = [{"$changeStream": {"allChangesForCluster": True}}]


def stream(target: Any, pipeline: list[Any] = STREAM, **fields: Any) -> dict[str, Any]:
    return {"aggregate": target, "pipeline": pipeline, "cursor": {}, **fields}


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("admin", {"ping": 1}),
    ("admin", {"buildInfo": 1}),
    ("admin", {"whatsmyuri": 1}),
    ("admin", {"isdbgrid": 1}),
    ("admin", {"listCommands": 1}),
    ("admin", {"connectionStatus": 1}),
    ("admin", {"getCmdLineOpts": 1}),
    ("admin", {"getLog": "global"}),
    ("admin", {"hostInfo": 1}),
    ("admin", {"replSetGetStatus": 1}),
    ("admin", {"listShards": 1}),
    ("db", {"listShards": 1}),
    ("admin", {"serverStatus": 1}),
    ("db", {"serverStatus": 1}),
    ("admin", {"getParameter": 1, "logLevel": 1}),
    ("admin", {"startSession": 1}),
    ("admin", {"endSessions": []}),
    ("admin", {"killSessions": []}),
    ("admin", {"refreshSessions": []}),
    ("db", {"getMore": Int64(5), "collection": "c"}),
    ("db", {"killCursors": "c", "cursors": [Int64(5)]}),
    ("db", stream("c")),
    ("other", stream("c")),
    ("db", stream(1)),
    ("other", stream(1)),
    ("admin", stream(1, WHOLE_CLUSTER)),
    ("db", stream("system.views")),
    ("db", stream("c", [{"$changeStream": {"bad": 1}}])),
    ("other", stream("c", [{"$changeStream": {"bad": 1}}])),
    ("other", stream("c", [*STREAM, {"$group": {"_id": 1}}])),
    ("other", stream("c", bad=1)),
    ("other", {"aggregate": "c", "pipeline": STREAM}),
    ("db", {"explain": stream("c")}),
    ("other", {"explain": stream("c")}),
    ("db", {"insert": "c", "documents": [{"_id": ObjectId()}]}),
    ("other", {"insert": "c", "documents": [{"_id": ObjectId()}]}),
    ("db", {"find": "c"}),
    ("other", {"find": "c"}),
    ("admin", {"nosuch": 1}),
]


class Servers(NamedTuple):
    """The addresses of a mongos and of routers: with that mongos as upstream, and without."""

    mongos: str
    router: str
    alone: str
    cluster: RealCluster


@pytest.fixture(scope="module")
def servers(secured: RealCluster, key_file: Path, tmp_path_factory: Any) -> Iterator[Servers]:
    password = tmp_path_factory.mktemp("router") / "password"
    password.write_text("swordfish\n")
    password.chmod(0o600)
    admin = pymongo.MongoClient(secured.mongos_uri).admin
    for user, roles in USERS.items():
        admin.command("createUser", user, pwd=user, roles=roles)
    # The router's own user on the mongos looks documents up.
    admin.command("createUser", "router", pwd="swordfish", roles=["readAnyDatabase"])
    for database in ("db", "other"):
        admin.client[database].c.insert_one({})
    options = {"userCacheInvalidationIntervalSecs": 1, "authFailedDelayMs": 0}
    config = tmp_path_factory.mktemp("router") / "router.yaml"
    config.write_text(
        f"security:\n  keyFile: {key_file}\n  user: router\n  passwordFile: {password}\n"
    )
    upstream = f"mongodb://{secured.mongos}/"
    with (
        closing_router(
            start_router(secured.configdb, upstream, set_parameter=options, config=config)
        ) as router,
        closing_router(
            start_router(secured.configdb, keyFile=key_file, set_parameter=options)
        ) as alone,
    ):
        yield Servers(
            secured.mongos, f"127.0.0.1:{router.port}", f"127.0.0.1:{alone.port}", secured
        )


@contextmanager
def closing_router(router: RouterProcess) -> Iterator[RouterProcess]:
    try:
        yield router
    finally:
        router.stop()


def client(address: str, user: str | None, **options: Any) -> Client:
    login = {"username": user, "password": user} if user is not None else {}
    return pymongo.MongoClient(f"mongodb://{address}/", **login, **options)


def answer(connected: Client, database: str, command: dict[str, Any]) -> Any:
    """Return what a command is answered, as far as servers are compared."""
    try:
        connected[database].command(dict(command))
    except OperationFailure as error:
        message = str((error.details or {}).get("errmsg"))
        return error.code, re.sub(r"(, lsid: .*)? }( }|)$", "", message)
    return "ok"


@pytest.mark.parametrize("user", [None, "root", *USERS])
def test_commands_by_role(servers: Servers, user: str | None) -> None:
    with client(servers.mongos, user) as mongos, client(servers.router, user) as router:
        expected = [answer(mongos, *command) for command in COMMANDS]
        assert [answer(router, *command) for command in COMMANDS] == expected
    assert "ok" in expected
    assert user == "root" or 13 in [each[0] for each in expected]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256"])
@pytest.mark.parametrize("kind", ["router", "alone"])
def test_logins(servers: Servers, kind: str, mechanism: str) -> None:
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


def test_lookups_are_the_routers_own(servers: Servers) -> None:
    with client(servers.router, "writer") as writer:
        inserted = writer.db.c.insert_one({"n": 1}).inserted_id
        with writer.db.c.watch(full_document="updateLookup") as watching:
            writer.db.c.update_one({"_id": inserted}, {"$set": {"n": 2}})
            assert watching.next()["fullDocument"] == {"_id": inserted, "n": 2}
    with (
        client(servers.alone, "writer") as writer,
        pytest.raises(OperationFailure, match=r"--upstream .*security\.user"),
    ):
        writer.db.c.watch(full_document="updateLookup")


def read_on(connected: Client, getting: dict[str, Any], session: Any) -> None:
    """Read a stream until it fails, for half a minute at most."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        connected.db.command({**getting, "maxTimeMS": 500}, session=session)


def wait_for_answer(connected: Client, expected: Any) -> None:
    """Wait until the opening of a stream is answered as expected."""
    deadline = time.monotonic() + PATIENCE
    while (found := answer(connected, "db", stream("c"))) != expected:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_streams_end_with_their_users_rights(servers: Servers) -> None:
    admin = pymongo.MongoClient(servers.cluster.mongos_uri).admin
    admin.command("createUser", "brief", pwd="brief", roles=USERS["reader"])
    try:
        with client(servers.router, "brief") as brief, brief.start_session() as session:
            opened = brief.db.command(stream("c"), session=session)
            getting = {"getMore": Int64(opened["cursor"]["id"]), "collection": "c"}
            assert brief.db.command({**getting, "maxTimeMS": 50}, session=session)["ok"]
            admin.command("revokeRolesFromUser", "brief", roles=USERS["reader"])
            with pytest.raises(OperationFailure, match="not authorized for getMore with cursor id"):
                read_on(brief, getting, session)
            admin.command("grantRolesToUser", "brief", roles=USERS["reader"])
            wait_for_answer(brief, "ok")
            admin.command("dropUser", "brief")
            wait_for_answer(brief, (13, "command aggregate requires authentication"))
    finally:
        with suppress(OperationFailure):
            admin.command("dropUser", "brief")


def test_cursors_of_other_users(servers: Servers) -> None:
    answers = []
    for address in (servers.mongos, servers.router):
        with client(address, "root") as root, client(address, "reader") as reader:
            opened = root.db.command(stream("c"))["cursor"]["id"]
            getting = {"getMore": Int64(opened), "collection": "c"}
            killing = {"killCursors": "c", "cursors": [Int64(opened)]}
            answers.append(
                [
                    re.sub(r"\d{9,}", "ID", str(answer(who, "db", command)))
                    for who, command in (
                        (reader, getting),
                        (reader, killing),
                        (root, getting),
                        (root, killing),
                    )
                ]
            )
    # A driver without an explicit session has another one for each command.
    hidden = [re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", text) for text in answers[0]]
    assert [re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", text) for text in answers[1]] == hidden


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


@pytest.mark.parametrize("kind", ["router", "alone"])
async def test_bad_logins(servers: Servers, kind: str) -> None:
    answers = []
    for address in (servers.mongos, getattr(servers, kind)):
        async with await RawClient.connect(port_of(address)) as raw:
            replies = [await raw.command(*each) for each in HANDSHAKE]
        for each in replies:  # mongod and mongos name them in different orders
            each.get("saslSupportedMechs", []).sort()
        answers.append([{name: each.get(name) for name in COMPARED} for each in replies])
    assert answers[1] == answers[0]


@pytest.mark.parametrize("kind", ["router", "alone"])
async def test_steps_out_of_order(servers: Servers, kind: str) -> None:
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


def test_times_are_signed(servers: Servers) -> None:
    """The router's times are signed as mongos signs them, and mongos believes them."""
    with (
        client(servers.alone, "reader") as reader,
        client(servers.mongos, "reader") as mongos,
        reader.start_session() as session,
        mongos.start_session() as other,
    ):
        reader.db.command(stream("c"), session=session)
        signed = session.cluster_time
        assert signed is not None
        assert signed["signature"]["keyId"] != 0
        other.advance_cluster_time(signed)
        assert mongos.db.command("find", "c", session=other)["ok"]


SIGNATURES = [
    {"hash": b"\0" * 20, "keyId": Int64(0)},
    {"hash": b"\1" * 20, "keyId": Int64(5)},
    {"hash": b"\1" * 20, "keyId": None},
]


@pytest.mark.parametrize("signature", SIGNATURES, ids=str)
@pytest.mark.parametrize("user", ["reader", "root"])
def test_times_of_clients(servers: Servers, user: str, signature: dict[str, Any]) -> None:
    answers = []
    for address in (servers.mongos, servers.router):
        with client(address, user) as one, one.start_session() as session:
            known = one.admin.command("ping", session=session)["$clusterTime"]
            key = known["signature"]["keyId"] if signature["keyId"] is None else signature["keyId"]
            ahead = Timestamp(known["clusterTime"].time + 100_000, 1)
            forged = {"clusterTime": ahead, "signature": {**signature, "keyId": key}}
            session.advance_cluster_time(forged)
            try:
                one.admin.command("buildInfo", session=session)
                one.db.command(stream("c"), session=session)
                answers.append("ok")
            except OperationFailure as error:
                text = str((error.details or {}).get("errmsg"))
                answers.append((error.code, re.sub(r"\d{9,}", "N", text)))
    assert answers[1] == answers[0]


def test_secrets_are_shown_nowhere(servers: Servers, key_file: Path) -> None:
    key = key_file.read_text()
    with client(servers.router, "root") as root:
        shown = str(root.admin.command("getCmdLineOpts"))
        shown += str(root.admin.command("getLog", "global"))
        shown += str(root.admin.command("serverStatus"))
    assert "passwordFile" in shown
    assert "swordfish" not in shown
    assert key[:20] not in shown


async def test_workers_know_whose_cursors_they_have(
    secured: RealCluster, servers: Servers, key_file: Path
) -> None:
    router = start_router(secured.configdb, keyFile=key_file, workers=2)
    address = ("127.0.0.1", router.port)
    reader = Credentials("reader", "admin", ("reader",))
    root = Credentials("root", "admin", ("root",))
    session = {"lsid": {"id": Binary(bytes(16), 4)}}
    async with AsyncExitStack() as owned:
        owned.callback(router.stop)

        async def connect(who: Credentials) -> Connection:
            connection = await Connection.open(address, timeout=10, credentials=who)
            owned.callback(connection.abort)
            return connection

        # The router deals connections out in turn: each worker has some of each user's.
        readers = [await connect(reader) for _ in range(4)]
        roots = [await connect(root) for _ in range(4)]
        opened = await readers[0].command("db", stream("c", **session), timeout=10)
        cursor = Int64(opened["cursor"]["id"])
        getting = {"getMore": cursor, "collection": "c", "maxTimeMS": 10, **session}
        for each in readers:
            assert (await each.command("db", getting, timeout=10))["ok"]
        for each in roots:
            with pytest.raises(CommandError, match="was not created by the authenticated user"):
                await each.command("db", getting, timeout=10)
            ended = {"endSessions": [session["lsid"]]}
            assert (await each.command("admin", ended, timeout=10))["ok"]
        assert (await readers[0].command("db", getting, timeout=10))["ok"]
        killing = {"killCursors": "c", "cursors": [cursor]}
        for number, each in enumerate(roots):
            killed = await each.command("db", killing, timeout=10)
            assert killed["cursorsKilled"] == ([] if number else [cursor])


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


EVERYTHING = {"db": "", "collection": ""}
LEAST = [
    {"resource": EVERYTHING, "actions": ["changeStream", "find"]},
    {"resource": {"cluster": True}, "actions": ["appendOplogNote"]},
    {"resource": {"db": "local", "collection": "oplog.rs"}, "actions": ["collStats", "find"]},
]
LEAST_ON_CONFIG = [
    *LEAST,
    {"resource": {"db": "config", "collection": ""}, "actions": ["changeStream", "find"]},
    {"resource": EVERYTHING, "actions": ["viewUser"]},
]


def test_a_router_of_least_privilege(
    secured: RealCluster, servers: Servers, tmp_path: Path
) -> None:
    """The roles of docs/security.md are enough, and times that servers signed are handed out."""
    login = {"user": "least", "pwd": "least"}
    for shard in secured.shards:
        create_least(secured.direct(shard), LEAST)
    create_least(pymongo.MongoClient(secured.mongos_uri), LEAST_ON_CONFIG)
    password = tmp_path / "password"
    password.write_text(login["pwd"])
    password.chmod(0o600)
    config = tmp_path / "router.yaml"
    config.write_text(f"security:\n  user: least\n  passwordFile: {password}\n")
    with (
        closing_router(start_router(secured.configdb, config=config)) as router,
        client(f"127.0.0.1:{router.port}", "writer") as watcher,
        client(servers.mongos, "writer") as writer,
        watcher.start_session() as session,
    ):
        with watcher.db.watch(session=session) as watching:
            inserted = writer.db.c.insert_one({}).inserted_id
            assert watching.next()["documentKey"] == {"_id": inserted}
        assert session.cluster_time is not None
        assert session.cluster_time["signature"]["keyId"] != 0
        with writer.start_session() as other:
            other.advance_cluster_time(session.cluster_time)
            assert writer.db.command("find", "c", session=other)["ok"]
        refusals = [line for line in router.logs() if "not authorized" in str(line)]
        assert not refusals, [str(line)[:400] for line in refusals]


def create_least(connected: Client, privileges: list[dict[str, Any]]) -> None:
    with connected:
        role = {"createRole": "mergerouter", "privileges": privileges, "roles": []}
        connected.admin.command(role)
        connected.admin.command("createUser", "least", pwd="least", roles=["mergerouter"])
