"""Budgets of users: what one may open and hold, beside the others."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pymongo.errors import OperationFailure

from router.limits.memory import LEAST_BATCH, NEEDS
from tests.harness.clusters import TestCluster
from tests.harness.routers import RouterProcess, start_router
from tests.integration.security.clients import Servers, client

REMOTES = 3
"""Two shards and the config server."""


@pytest.fixture(scope="module")
def router(servers: Servers, secured: TestCluster, key_file: Path) -> Iterator[RouterProcess]:
    """A router with memory for two streams of each user."""
    limits = {"userBufferBytes": 2 * REMOTES * NEEDS * LEAST_BATCH, "shareLingerMs": 0}
    with start_router(secured.configdb, keyFile=key_file, set_parameter=limits) as running:
        yield running


def test_a_user_beyond_its_budget_is_refused_and_others_are_not(
    router: RouterProcess, servers: Servers
) -> None:
    address = f"127.0.0.1:{router.port}"
    with ExitStack() as owned:
        reader, other, monitor = (
            owned.enter_context(client(address, user)) for user in ("reader", "writer", "monitor")
        )
        matching = [[{"$match": {"n": number}}] for number in range(5)]
        for pipeline in matching[:2]:
            owned.enter_context(reader.db.c.watch(pipeline, comment="x", max_await_time_ms=100))
        with pytest.raises(OperationFailure) as refused:
            reader.db.c.watch(matching[2])
        assert refused.value.code == 365
        assert "opened by the user reader@admin" in str(refused.value)
        assert "userBufferBytes" in str(refused.value)
        for pipeline in matching[2:4]:
            owned.enter_context(other.db.c.watch(pipeline, max_await_time_ms=100))
        status = monitor.admin.command("serverStatus")["mergerouter"]
        users = {each["user"]: (each["cursors"], each["streams"]) for each in status["users"]}
        assert users == {"reader@admin": (2, 2), "writer@admin": (2, 2)}
        assert status["refused"]["userBufferBytes"] >= 1
