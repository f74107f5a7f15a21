"""Commands of operators and shells on the embedded mongos."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson import MaxKey, MinKey

from embedded.clients import Client
from embedded.cluster import EmbeddedCluster


class Mongos:
    """The mongos of a cluster, with one client."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self._client = Client()

    async def run(self, database: str, command: dict[str, Any]) -> dict[str, Any]:
        return await self.cluster.mongos.run_command(database, command, self._client)


@pytest.fixture
async def mongos() -> AsyncIterator[Mongos]:
    async with EmbeddedCluster(2, noop_interval=0) as cluster:
        yield Mongos(cluster)


async def test_a_chunk_is_split_at_its_median(mongos: Mongos) -> None:
    await mongos.run("admin", {"shardCollection": "db.c", "key": {"x": 1}})
    refused = await mongos.run("admin", {"split": "db.c", "find": {"x": 1}})
    assert (refused["code"], refused["codeName"]) == (96, "CannotSplit")
    documents = [{"_id": n, "x": n} for n in (50, 10, 40, 20, 30)]
    await mongos.run("db", {"insert": "c", "documents": documents})
    assert (await mongos.run("admin", {"split": "db.c", "find": {"x": 1}}))["ok"] == 1
    found = await mongos.run("config", {"find": "chunks", "sort": {"min": 1}})
    bounds = [(each["min"]["x"], each["max"]["x"]) for each in found["cursor"]["firstBatch"]]
    assert bounds == [(MinKey(), 30), (30, MaxKey())]


async def test_each_shard_gives_its_statistics_of_a_collection(mongos: Mongos) -> None:
    await mongos.run("admin", {"shardCollection": "db.c", "key": {"x": 1}})
    await mongos.run("db", {"insert": "c", "documents": [{"_id": 1, "x": 1}, {"_id": 2, "x": 2}]})
    command = {"aggregate": "c", "pipeline": [{"$collStats": {"storageStats": {}}}], "cursor": {}}
    [stored] = (await mongos.run("db", command))["cursor"]["firstBatch"]
    assert stored["ns"] == "db.c"
    assert stored["storageStats"]["count"] == 2
    assert set(stored["storageStats"]["indexSizes"]) == {"_id_", "x_1"}


async def test_status_and_operations_of_a_process_that_does_nothing(mongos: Mongos) -> None:
    status = await mongos.run("admin", {"serverStatus": 1})
    assert (status["ok"], status["process"]) == (1, "mongos")
    assert (await mongos.run("admin", {"currentOp": 1}))["inprog"] == []


@pytest.mark.parametrize(
    ("token_version", "events"),
    [(1, ["insert", "insert", "update"]), (2, ["insert", "insert", "update", "delete"])],
)
async def test_a_stream_shows_the_removal_of_a_shard_since_7_0(
    token_version: int, events: list[str]
) -> None:
    """As tried on 6.0: the last event is the update that sets ``draining``."""
    async with EmbeddedCluster(2, token_version=token_version, noop_interval=0) as cluster:
        mongos = Mongos(cluster)
        start = cluster.config_server.oplog.first_ts
        states = [(await mongos.run("admin", {"removeShard": "shard1"}))["state"] for _ in range(2)]
        assert states == ["started", "completed"]
        listed = await mongos.run("config", {"find": "shards"})
        assert [each["_id"] for each in listed["cursor"]["firstBatch"]] == ["shard0"]
        options = {"allowToRunOnConfigDB": True, "startAtOperationTime": start}
        watch = {"aggregate": "shards", "pipeline": [{"$changeStream": options}], "cursor": {}}
        client = Client(in_process=True)
        opened = await cluster.config_server.execute("config", watch, client)
        more = {"getMore": opened["cursor"]["id"], "collection": "shards", "maxTimeMS": 1}
        seen = opened["cursor"]["firstBatch"]
        seen += (await cluster.config_server.execute("config", more, client))["cursor"]["nextBatch"]
        assert [event["operationType"] for event in seen] == events
