"""Commands of operators and shells on the embedded mongos."""

from typing import Any

import pytest

from embedded.clients import Client
from embedded.cluster import EmbeddedCluster


class Mongos:
    """The mongos of a cluster, with one client."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self._client = Client()

    async def run(self, database: str, command: dict[str, Any]) -> dict[str, Any]:
        return await self.cluster.mongos.run_command(database, command, self._client)


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
