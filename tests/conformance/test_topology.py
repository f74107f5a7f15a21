"""Shards that are added and removed while a stream is open (docs/protocol.md#sharded-cluster)."""

import pytest

from router.assembly import process_parts
from router.config.settings import Settings
from tests.conformance.data import Documents, shard_over_three
from tests.conformance.streams import CLUSTER, Stream, now
from tests.harness.clusters import Client, real_servers_named, start_cluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import start_router


def write(spread: Documents, numbers: range) -> None:
    for number in numbers:
        spread.insert_one({"_id": number, "k": number % 30})


def test_streams_include_added_and_removed_shards() -> None:
    with (
        start_cluster(3, noop_interval=0.2) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri) as router,
        Client(router.uri) as client,
    ):
        shards = list(cluster.shards)
        spread = shard_over_three(client.topology, "spread", shards)
        chunk = {"moveChunk": spread.full_name, "find": {"k": 25, "_id": 1}}
        with Stream(client, "admin", 1, CLUSTER) as stream:
            write(spread, range(30))
            new, _ = cluster.add_shard()
            client.admin.command({**chunk, "to": new})
            write(spread, range(30, 60))
            stream.past(now(client))
            client.admin.command({**chunk, "to": shards[0]})
            cluster.remove_shard(new)
            write(spread, range(60, 90))
            events = stream.past(now(client))
            assert stream.id
    inserted = [e["documentKey"]["_id"] for e in events if e["ns"]["coll"] == "spread"]
    assert inserted == list(range(90))
    assert stream.pbrts == sorted(stream.pbrts)


def test_a_config_server_that_is_a_shard_has_two_cursors() -> None:
    if real_servers_named():
        pytest.skip("the config server of MongoDB 6.0 cannot be a shard")
    with (
        start_cluster(1, server_version="8.2", noop_interval=0.2) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri) as router,
        Client(router.uri) as client,
        cluster.direct("config") as config,
        Stream(client, "shop") as early,
    ):
        shard = {"_id": "config", "host": cluster.configdb, "state": 1}
        config.config.shards.insert_one(shard)
        early.past(now(client))
        config.shop.c.insert_one({"_id": 1})
        client.shop.c.insert_one({"_id": 2})
        with Stream(client, "shop") as late:
            config.shop.c.insert_one({"_id": 3})
            config.config.shards.delete_one({"_id": "config"})
            client.shop.c.insert_one({"_id": 4})
            end = now(client)
            for stream, expected in ((early, [1, 2, 3, 4]), (late, [3, 4])):
                keys = [event["documentKey"]["_id"] for event in stream.past(end)]
                assert sorted(keys) == expected
                assert stream.id


async def test_a_cluster_without_shards_returns_a_closed_cursor() -> None:
    """The router does not start on such a cluster, so its parts are put together here."""
    with start_cluster(0) as cluster:
        settings = Settings.model_validate(
            {"sharding": {"configDB": cluster.configdb}, "upstream": cluster.mongos_uri}
        )
        async with process_parts(settings, []) as (_, listener, _):
            port = await listener.listen(["127.0.0.1"], 0)
            async with await RawClient.connect(port) as client:
                for database, target, options in (
                    ("db", "a", {}),
                    ("db", 1, {}),
                    ("admin", 1, CLUSTER),
                ):
                    stage = {"$changeStream": options}
                    command = {"aggregate": target, "pipeline": [stage], "cursor": {}}
                    cursor = (await client.command(database, command))["cursor"]
                    assert cursor["id"] == 0
                    assert cursor["firstBatch"] == []
