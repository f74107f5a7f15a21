"""After an invalidate, a real mongos and the router give the same events up to the same end."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.conformance.streams import Event, Stream, now
from tests.harness.clusters import Client, start_real_cluster
from tests.harness.routers import start_router
from tests.harness.server_settings import ServerSettings

INSERTS: list[Any] = [{"$match": {"operationType": "insert"}}]
DROPS: list[Any] = [{"$match": {"operationType": "drop"}}]
NOT_THERE: list[Any] = [{"$match": {"documentKey._id": "nowhere"}}]


class Pair(NamedTuple):
    """Clients of a mongos and of a router."""

    mongos: Client
    router: Client


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with (
        start_real_cluster(2, noop_interval=1) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri) as router,
        Client(cluster.mongos_uri) as mongos,
        Client(router.uri) as client,
    ):
        yield Pair(mongos, client)


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


def moved(client: Client, database: str) -> None:
    """Make the collection on shard1."""
    client.drop_database(database)
    client.admin.command("enableSharding", database, primaryShard="shard1")
    client[database].create_collection("c")


def sharded(client: Client, database: str, collection: str = "c") -> None:
    """Make the collection on both shards."""
    name = f"{database}.{collection}"
    client.admin.command("shardCollection", name, key={"_id": 1})
    client.admin.command("split", name, middle={"_id": 10})
    for at, shard in ((1, "shard0"), (10, "shard1")):
        client.admin.command("moveChunk", name, find={"_id": at}, to=shard)


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("made", [moved, sharded])
def test_later_incarnations_end_the_stream_at_the_same_event(
    pair: Pair, made: Any, writes: bool, expanded: bool
) -> None:
    database = f"{made.__name__}_{writes}_{expanded}"
    token = after_a_drop(pair.mongos, database)
    for number in range(3):
        made(pair.mongos, database)
        if writes or number:
            pair.mongos[database].c.insert_many([{"_id": 1}, {"_id": 11}])
        pair.mongos[database].c.drop()
    options = {"startAfter": token, "showExpandedEvents": expanded}
    for stages in ([], INSERTS, DROPS, NOT_THERE):
        expected = to_the_end(pair.mongos, database, options, stages)
        assert to_the_end(pair.router, database, options, stages) == expected


@pytest.mark.parametrize("shard", ["shard0", "shard1"])
def test_one_token_may_end_the_stream_of_one_shard_and_not_of_the_other(
    pair: Pair, shard: str
) -> None:
    """A rename puts a collection of both shards in the place of one that ``shard`` alone had."""
    database = f"replaced_on_{shard}"
    token = after_a_drop(pair.mongos, database, shard)
    documents = pair.mongos[database]
    documents.c.insert_one({"_id": 1})
    sharded(pair.mongos, database, "new")
    documents.new.rename("c", dropTarget=True)
    for stages in ([], INSERTS, DROPS, NOT_THERE):
        options = {"startAfter": token}
        expected, found = (to_the_end(each, database, options, stages) for each in pair)
        assert found[-1] == expected[-1] != token
        # The order of events with equal tokens depends on which shard answers first.
        assert sorted(found, key=str) == sorted(expected, key=str)


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
