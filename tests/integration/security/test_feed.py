"""Logins on the feed: in lines, with the cluster's users and their rights."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster
from tests.harness.feed_client import Line, feed, refusal
from tests.harness.routers import RouterProcess, start_router
from tests.integration.security.clients import USERS, Servers

EXAMPLE = Path(__file__).parents[3] / "examples" / "read_secured_feed.py"


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "workers"])
def router(
    request: pytest.FixtureRequest, servers: Servers, secured: TestCluster, key_file: Path
) -> Iterator[RouterProcess]:
    options = {"userCacheInvalidationIntervalSecs": 1, "authFailedDelayMs": 0}
    flags = {"keyFile": key_file, "set_parameter": options, "workers": request.param}
    with start_router(secured.configdb, feed=True, **flags) as running:
        yield running


REQUESTS: list[tuple[str, Line, str]] = [
    ("reader", {"database": "db", "collection": "c"}, "allowed"),
    ("reader", {"database": "db"}, "allowed"),
    ("reader", {"database": "other", "collection": "c"}, "refused"),
    ("reader", {}, "refused"),
    ("nobody", {"database": "db", "collection": "c"}, "refused"),
    ("everywhere", {"database": "other"}, "allowed"),
    ("everywhere", {}, "allowed"),
]


@pytest.mark.parametrize(("user", "request_line", "expected"), REQUESTS)
async def test_rights_are_those_of_a_driver(
    router: RouterProcess, user: str, request_line: Line, expected: str
) -> None:
    async with feed(router.feed_port) as connected:
        assert (await connected.log_in(user, user))["login"]["done"]
        connected.send({**request_line, "heartbeatMs": 10})
        if expected == "allowed":
            assert "resolved" in (await connected.receive() or {})
        else:
            assert await refusal(connected) == 13


async def test_a_refused_login_closes_the_feed_connection(router: RouterProcess) -> None:
    for user, password in (("reader", "wrong"), ("stranger", "x")):
        async with feed(router.feed_port) as connected:
            error = (await connected.log_in(user, password))["error"]
            assert (error["code"], error["errmsg"]) == (18, "Authentication failed.")
            assert await connected.receive() is None


START = {"mechanism": "SCRAM-SHA-256", "payload": "n,,n=reader,r=0123456789abcdefghijklmnop"}
BAD_LINES: list[tuple[object, int]] = [
    ({"database": "db"}, 13),
    ({"login": 5}, 13),
    ({"login": {}}, 9),
    ({"login": {**START, "mechanism": "PLAIN"}}, 9),
    ({"login": {"mechanism": "MONGODB-X509"}}, 18),
    ({"login": {"mechanism": "MONGODB-X509", "user": 5}}, 9),
    ({"login": {**START, "payload": 5}}, 9),
    ({"login": {**START, "authSource": 5}}, 9),
    ({"login": {**START, "payload": ""}}, 18),
    ({"login": {**START, "payload": "n,,n=reader,r="}}, 18),
    ({"login": {**START, "payload": "x" * 10_000}}, 18),
    ({"login": {**START, "payload": "x" * 17_000}}, 9),
    ([], 13),
]


@pytest.mark.parametrize(("line", "code"), BAD_LINES, ids=range(len(BAD_LINES)))
async def test_a_line_that_is_no_login_gets_an_error(
    router: RouterProcess, line: object, code: int
) -> None:
    async with feed(router.feed_port) as connected:
        connected.send(line)
        assert await refusal(connected) == code


async def test_a_wrong_nonce_and_a_replayed_step(router: RouterProcess) -> None:
    for last in ("c=biws,r=foreign,p=AAAA", START["payload"]):
        async with feed(router.feed_port) as connected:
            connected.send({"login": START})
            assert "login" in (await connected.receive() or {})
            connected.send({"login": {"payload": last}})
            assert await refusal(connected) == 18


async def test_a_stream_ends_with_its_user_s_rights(
    router: RouterProcess, secured: TestCluster
) -> None:
    with Client(secured.mongos_uri) as root:
        root.admin.command("createUser", "fed", pwd="fed", roles=USERS["reader"])
        try:
            async with feed(router.feed_port) as connected:
                assert (await connected.log_in("fed", "fed"))["login"]["done"]
                connected.send({"database": "db", "heartbeatMs": 10})
                assert "resolved" in (await connected.receive() or {})
                root.admin.command("dropUser", "fed")
                while "resolved" in (line := await connected.receive() or {}):
                    pass
                assert line["error"]["code"] == 13
                assert await connected.receive() is None
        finally:
            with suppress(OperationFailure):
                root.admin.command("dropUser", "fed")


def test_the_example_logs_in(router: RouterProcess, secured: TestCluster) -> None:
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), "everywhere", "127.0.0.1", str(router.feed_port)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MERGEROUTER_PASSWORD": "everywhere"},
    )
    read = threading.Event()

    def write() -> None:
        # The example prints its first line before its stream is open.
        with Client(secured.mongos_uri) as root:
            while not read.wait(0.05):
                root.shop.orders.insert_one({})

    writing = threading.Thread(target=write)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        writing.start()
        assert process.stdout.readline().startswith("insert {'$oid': ")
    finally:
        read.set()
        process.kill()
        process.wait()
        process.stdout.close()
        writing.join()
