"""Checks of the replica sets do not hold up those who ask for their results."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.catalog.replica_set_checks import ReplicaSetChecks
from shard_client.errors import CommandError

_WAIT = 30.0


class _Connection:
    def __init__(self, entry: Mapping[str, Any]) -> None:
        self._entry = entry

    async def command(self, database: str, command: object, *, timeout: float) -> dict[str, Any]:
        return {"cursor": {"firstBatch": [self._entry]}}


class _Cluster:
    """Replica sets that answer once ``answering`` is set."""

    def __init__(self) -> None:
        self.answering = asyncio.Event()
        self.entry: dict[str, Any] = {"ts": Timestamp(100, 1), "o": {"msg": "initiating set"}}
        self.known_shards = {"a"}
        self.failure: CommandError | None = None

    async def shards(self, timeout: float) -> None:
        if self.failure is not None:
            raise self.failure

    def dialer(self, target: str) -> "_Cluster":
        return self

    async def connect(self, timeout: float) -> _Connection:
        await self.answering.wait()
        return _Connection(self.entry)

    def release(self, connection: _Connection) -> None:
        pass


async def test_a_shard_that_hangs_does_not_hold_the_results_up() -> None:
    cluster = _Cluster()
    checks = ReplicaSetChecks(cast(Cluster, cluster), keep=0.0)
    try:
        async with asyncio.timeout(_WAIT):
            assert await checks.results(patience=0.0) == {}
            cluster.answering.set()
            found = await checks.results(patience=None)
            assert found["a"].answers
            assert found["a"].complete
            cluster.answering.clear()
            assert (await checks.results(patience=0.0)) == found
    finally:
        await checks.close()


async def test_the_oldest_entry_is_found_and_a_missing_config_server_named() -> None:
    cluster = _Cluster()
    cluster.answering.set()
    cluster.entry = {"ts": Timestamp(100, 1)}
    cluster.failure = CommandError(133, "no primary")
    checks = ReplicaSetChecks(cast(Cluster, cluster))
    try:
        found = await checks.results(patience=None)
    finally:
        await checks.close()
    assert found["a"].oldest == Timestamp(100, 1)
    assert not found["a"].complete
    assert not found["config"].answers
    assert "no primary" in str(found["config"].error)
