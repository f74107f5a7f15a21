"""Changes of users and roles reach logged-in clients and their streams, as through mongos."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, TestCluster, on_real_servers
from tests.harness.routers import start_router
from tests.integration.security.clients import answer, client, stream

_WAIT_MS = 50
"""How long a getMore waits for events: a busy machine lengthens it, so that replies are counted."""
_AT_ONCE = 60
"""Replies before a change that passes through the same router has ended a stream, at most."""
_ELSEWHERE = 200
"""The same for a change made elsewhere, of which the config server is asked every two seconds."""
READ = [{"resource": {"db": "db", "collection": ""}, "actions": ["changeStream", "find"]}]

Change = Callable[[Any], Any]
CHANGES: dict[str, Change] = {
    "revoked": lambda admin: admin.command("revokeRolesFromUser", "brief", roles=["watcher"]),
    "dropped": lambda admin: admin.command("dropUser", "brief"),
    "narrowed": lambda admin: admin.command("updateRole", "watcher", privileges=[]),
    "role dropped": lambda admin: admin.command("dropRole", "watcher"),
}
pytestmark = on_real_servers("roles of one's own")
CASES = [pytest.param(change, id=name) for name, change in CHANGES.items()]


@pytest.fixture(scope="module")
def routers(secured: TestCluster, key_file: Path) -> Iterator[dict[str, str]]:
    """The addresses of routers: with an upstream in two processes, and without."""
    upstream = f"mongodb://{secured.mongos}/"
    flags = {"keyFile": key_file, "set_parameter": {"authFailedDelayMs": 0}}
    with (
        start_router(secured.configdb, upstream, workers=2, **flags) as router,
        start_router(secured.configdb, **flags) as alone,
    ):
        yield {"router": f"127.0.0.1:{router.port}", "alone": f"127.0.0.1:{alone.port}"}


@pytest.fixture
def admin(secured: TestCluster) -> Iterator[Any]:
    """The database admin on mongos, with the user ``brief``, who may watch ``db``."""
    with Client(secured.mongos_uri) as root:
        root.admin.command("createRole", "watcher", privileges=READ, roles=[])
        make_brief(root.admin)
        try:
            yield root.admin
        finally:
            for command in ("dropUser", "brief"), ("dropRole", "watcher"):
                with suppress(OperationFailure):  # the change may have dropped it
                    root.admin.command(*command)


def make_brief(admin: Any) -> None:
    admin.command("createUser", "brief", pwd="brief", roles=["watcher"])


def replies_until_refused(brief: Client, change: Callable[[], Any]) -> tuple[int, str]:
    """Return how often an open stream replies after a change, and the error that ends it."""
    with brief.start_session() as session:
        opened = brief.db.command(stream("c"), session=session)
        getting = {
            "getMore": Int64(opened["cursor"]["id"]),
            "collection": "c",
            "maxTimeMS": _WAIT_MS,
        }
        assert brief.db.command(getting, session=session)["ok"]
        change()
        for replies in range(_ELSEWHERE):
            try:
                brief.db.command(getting, session=session)
            except OperationFailure as error:
                return replies, str((error.details or {})["errmsg"])
        pytest.fail("the stream goes on")


@pytest.mark.parametrize("change", CASES)
def test_a_change_through_the_router_ends_streams_at_once(
    routers: dict[str, str], admin: Any, change: Change
) -> None:
    with client(routers["router"], "root") as root, client(routers["router"], "brief") as brief:
        replies, message = replies_until_refused(brief, lambda: change(root.admin))
    assert replies < _AT_ONCE
    assert "not authorized" in message or "requires authentication" in message


@pytest.mark.parametrize("address", ["router", "alone"])
@pytest.mark.parametrize("change", CASES)
def test_a_change_elsewhere_ends_streams_within_seconds(
    routers: dict[str, str], admin: Any, change: Change, address: str
) -> None:
    with client(routers[address], "brief") as brief:
        replies_until_refused(brief, lambda: change(admin))


@pytest.mark.parametrize("address", ["router", "alone"])
def test_the_cache_of_users_can_be_emptied(
    routers: dict[str, str], admin: Any, address: str
) -> None:
    with client(routers[address], "root") as root, client(routers[address], "brief") as brief:

        def change() -> None:
            admin.command("revokeRolesFromUser", "brief", roles=["watcher"])
            assert root.admin.command("invalidateUserCache")["ok"]

        assert replies_until_refused(brief, change)[0] < _AT_ONCE


@pytest.mark.parametrize("address", ["router", "alone"])
def test_a_user_that_is_made_again_can_watch_while_an_old_connection_is_open(
    routers: dict[str, str], admin: Any, address: str
) -> None:
    with client(routers[address], "brief") as old:
        assert old.db.command(stream("c"))["ok"]
        admin.command("dropUser", "brief")
        make_brief(admin)
        with ExitStack() as opened:
            streams = []
            for _ in range(4):  # one in each worker
                new = opened.enter_context(client(routers[address], "brief"))
                streams.append(opened.enter_context(new.db.c.watch(max_await_time_ms=100)))
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline:  # across the next look at the users
                for each in streams:
                    each.try_next()
        assert answer(old, "db", stream("c"))[0] == 13
