"""Planning and reading through a router before a sharded cluster, without Spark between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from spark_sink.batch_planner import BatchPlanner
from spark_sink.event_stream import EventStream, read_range
from spark_sink.options import parse_options
from spark_sink.positions import AtTime, Position
from spark_sink.router_client import RouterClient
from tests.harness.clusters import TestCluster
from tests.harness.routers import RouterProcess
from tests.spark.conftest import Shop

pytestmark = pytest.mark.xdist_group("spark")  # one cluster, one Spark


@contextmanager
def client(uri: str, **options: str) -> Iterator[RouterClient]:
    client = RouterClient(parse_options({"uri": uri, **options}))
    yield client
    client.close()


def tokens_in_batches(client: RouterClient, start: Position, max_events: int) -> list[str]:
    """The present history, planned and read in batches of so many events."""
    watch = partial(client.watch_tokens, max_await=0.1)
    planner = BatchPlanner(
        watch,
        lambda: client.clocks().cluster_time,
        lambda: AtTime(client.clocks().cluster_time),
        events_per_range=2,
    )
    planner.stop_at_present()
    tokens = []
    while (end := planner.next_end(start, max_events)) != start:
        for one in planner.ranges(start, end):
            watch_events = partial(client.watch_events, batch_size=2, max_await=0.5)
            stream = EventStream(watch_events, one.start)
            tokens += [event["_id"]["_data"] for event in read_range(stream, one.end)]
            stream.close()
        start = end
    planner.close()
    return tokens


@pytest.mark.parametrize("collection", [{}, {"collection": "orders"}])
def test_batches_of_any_size_hold_the_same_over_drops_and_renames(shop: Shop, collection) -> None:
    shop.insert(20)
    shop.orders.drop()
    shop.shard_orders()
    shop.insert(10)
    shop.orders.rename("archive")
    shop.insert(5)
    shop.client.drop_database(shop.database)
    shop.insert(3)
    with client(shop.uri, database=shop.database, **collection) as router:
        one, few, many = (
            tokens_in_batches(router, AtTime(shop.created), size) for size in (1, 4, 1000)
        )
    assert one == few == many == sorted(set(many))
    assert len(many) > 38


def test_a_router_killed_and_started_again_is_only_a_pause(
    cluster: TestCluster, shop: Shop
) -> None:
    shop.insert(500)
    serve = ["--configdb", cluster.configdb]
    with RouterProcess([*serve, "--port", "0"]) as first:
        port = str(first.port)
        with client(first.uri, database=shop.database) as router:
            watch = partial(router.watch_events, batch_size=50, max_await=0.5)
            stream = EventStream(watch, AtTime(shop.created))
            numbers = []
            while len(numbers) < 500:
                if (event := stream.next()) is not None:
                    numbers.append(event["fullDocument"]["_id"])
                if len(numbers) == 120 and first.process.poll() is None:
                    first.process.kill()
                    first.process.wait()
                    second = RouterProcess([*serve, "--port", port])
            stream.close()
        second.stop()
    assert numbers == list(range(500))
