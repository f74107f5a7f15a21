"""What a user may do through the router is what mongos lets the user do."""

from contextlib import AsyncExitStack, ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Int64
from pymongo.errors import OperationFailure

from shard_client.errors import CommandError
from shard_client.wire.authentication import Credentials
from shard_client.wire.connection import Connection
from tests.harness.clusters import TestCluster, on_real_servers
from tests.harness.routers import start_router
from tests.harness.until import PATIENCE
from tests.integration.security.clients import STREAM, USERS, Servers, answer, client, stream

WHOLE_CLUSTER = [{"$changeStream": {"allChangesForCluster": True}}]


def test_who_may_follow_a_collection_may_report_a_job_on_it(servers: Servers) -> None:
    """A job reports with its own user, which has just the rights of its stream."""
    report = {"job": "out"}
    for user in (None, *USERS):
        with client(servers.router, user) as router:
            for database, target in (("db", "c"), ("other", "c"), ("db", 1), ("admin", 1)):
                stages = WHOLE_CLUSTER if database == "admin" else STREAM
                code = answer(router, database, stream(target, stages))[0]
                told = answer(router, database, {"mergerouterReportJob": target, **report})[0]
                assert told == code, (user, database, target)


def test_lookups_use_the_router_s_own_user(servers: Servers) -> None:
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


async def test_workers_know_whose_cursors_they_have(
    secured: TestCluster, servers: Servers, key_file: Path
) -> None:
    router = start_router(secured.configdb, keyFile=key_file, workers=2)
    address = ("127.0.0.1", router.port)
    reader = Credentials("reader", "admin", ("reader",))
    root = Credentials("root", "admin", ("root",))
    session = {"lsid": {"id": Binary(bytes(16), 4)}}
    async with AsyncExitStack() as owned:
        owned.callback(router.stop)

        async def connect(who: Credentials) -> Connection:
            connection = await Connection.open(address, timeout=PATIENCE, credentials=who)
            owned.callback(connection.abort)
            return connection

        # The router deals connections out in turn: each worker has some of each user's.
        readers = [await connect(reader) for _ in range(4)]
        roots = [await connect(root) for _ in range(4)]
        opened = await readers[0].command("db", stream("c", **session), timeout=PATIENCE)
        cursor = Int64(opened["cursor"]["id"])
        getting = {"getMore": cursor, "collection": "c", "maxTimeMS": 10, **session}
        for each in readers:
            assert (await each.command("db", getting, timeout=PATIENCE))["ok"]
        for each in roots:
            with pytest.raises(CommandError, match="was not created by the authenticated user"):
                await each.command("db", getting, timeout=PATIENCE)
            ended = {"endSessions": [session["lsid"]]}
            assert (await each.command("admin", ended, timeout=PATIENCE))["ok"]
        assert (await readers[0].command("db", getting, timeout=PATIENCE))["ok"]
        killing = {"killCursors": "c", "cursors": [cursor]}
        for number, each in enumerate(roots):
            killed = await each.command("db", killing, timeout=PATIENCE)
            assert killed["cursorsKilled"] == ([] if number else [cursor])


@on_real_servers("change streams through its mongos")
def test_who_may_kill_whose_sessions(servers: Servers) -> None:
    """Without names, the user's own sessions, or those of all; an id names one of the user's."""
    names = ("root", "everywhere", "writer")
    writers = Binary(sha256(b"writer@admin").digest())
    kills: list[tuple[str, list[Any]]] = [
        ("killSessions", []), ("killSessions", [{}]), ("killSessions", [{"uid": writers}]),
        ("killAllSessions", []), ("killAllSessions", [{"user": "writer", "db": "admin"}]),
        ("killAllSessions", [{"user": "writer"}]), ("killAllSessions", [5]),
        ("killAllSessionsByPattern", []), ("killAllSessionsByPattern", [{}]),
        ("killAllSessionsByPattern", [{"uid": writers}]),
        ("killAllSessionsByPattern", [{"lsid": {"uid": writers}}]),
        ("killAllSessionsByPattern", [{"foo": 1}]),
        ("killSessions", [{"uid": None}]), ("killAllSessionsByPattern", [{"lsid": None}]),
        ("killAllSessions", [None]), ("killAllSessionsByPattern", [None]),
    ]  # fmt: skip

    def outcome(address: str, command: str, named: list[Any], killer: str) -> Any:
        with ExitStack() as owned:
            clients = {user: owned.enter_context(client(address, user)) for user in names}
            sessions = {user: owned.enter_context(clients[user].start_session()) for user in names}
            ids = {
                user: clients[user].db.command(stream("c"), session=sessions[user])["cursor"]["id"]
                for user in names
            }
            if command == "killSessions":
                named = [{**sessions["writer"].session_id, **each} for each in named]
            elif named and isinstance(named[0], dict) and named[0].get("lsid"):
                named = [{"lsid": {**sessions["writer"].session_id, **named[0]["lsid"]}}]
            killed = answer(clients[killer], "admin", {command: named})[0]
            left: dict[str, Any] = dict.fromkeys(names)
            for user in names:
                getting = {"getMore": Int64(ids[user]), "collection": "c", "maxTimeMS": 1}
                try:
                    clients[user].db.command(getting, session=sessions[user])
                except OperationFailure as error:
                    left[user] = error.code
            return killed, left

    for command, named in kills:
        for killer in ("root", "everywhere"):
            at_mongos = outcome(servers.mongos, command, named, killer)
            assert outcome(servers.router, command, named, killer) == at_mongos, (command, named)
            of_others = command != "killSessions" or (killer == "root" and "uid" in str(named))
            if not of_others:  # which takes an upstream
                assert outcome(servers.alone, command, named, killer) == at_mongos, named
