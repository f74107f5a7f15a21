"""A shared stream after an invalidate, beside a real mongos's.

The differential test's workload "incarnations" has streams after invalidates of all kinds.
"""

from typing import Any

from tests.conformance.streams import Event, Stream, now
from tests.harness.clusters import Client, start_real_cluster
from tests.harness.routers import start_router
from tests.harness.server_settings import ServerSettings


def to_the_end(client: Client, database: str, options: Any, stages: Any = None) -> list[Event]:
    """Return the events and, last, the token that ends the stream."""
    with Stream(client, database, "c", options, stages) as stream:
        return [*stream.until(lambda stream: not stream.id), stream.pbrt]


def after_a_drop(client: Client, database: str, shard: str = "shard0") -> Event:
    """Drop a collection on ``shard`` and return its invalidate's token."""
    start = now(client)
    client.admin.command("enableSharding", database, primaryShard=shard)
    client[database].c.insert_one({"_id": 0})
    client[database].c.drop()
    return to_the_end(client, database, {"startAtOperationTime": start})[-1]


def sharded(client: Client, database: str, collection: str = "c") -> None:
    """Make the collection on both shards."""
    name = f"{database}.{collection}"
    client.admin.command("shardCollection", name, key={"_id": 1})
    client.admin.command("split", name, middle={"_id": 10})
    for at, shard in ((1, "shard0"), (10, "shard1")):
        client.admin.command("moveChunk", name, find={"_id": at}, to=shard)


def test_a_slow_client_after_an_invalidate_needs_no_oplog_of_that_time() -> None:
    """It is opened again at its own place, and follows the shared stream to its end."""
    small = ServerSettings(noop_interval=1, oplog_mb=2, checkpoint_seconds=1)
    keeping = {"shareLogBytes": 20_000}
    with (
        start_real_cluster(2, settings=small) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri, set_parameter=keeping) as router,
        Client(cluster.mongos_uri) as mongos,
        Client(router.uri) as client,
    ):
        options = {"startAfter": after_a_drop(mongos, "shop")}
        sharded(mongos, "shop")
        with (
            Stream(mongos, "shop", "c", options) as expected,
            Stream(client, "shop", "c", options) as fast,
            Stream(client, "shop", "c", options) as slow,
        ):
            written = 0

            def write(count: int, *readers: Stream) -> None:
                nonlocal written
                documents = [{"_id": n if n % 2 else -n} for n in range(written, written + count)]
                mongos.shop.c.insert_many([{**each, "text": "x" * 500} for each in documents])
                written += count
                for reader in readers:
                    reader.read(written)

            cluster.roll_over(lambda: write(2, expected, fast, slow))
            for _ in range(4):
                write(100, expected, fast)
            assert len(slow.events) == written - 400
            mongos.shop.c.drop()
            for reader in (expected, fast, slow):
                reader.until(lambda reader: not reader.id)
            assert slow.events == fast.events == expected.events
            assert len(slow.events) == written + 2
