"""Planning and reading through a router, a mongos and a replica set, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from bson.timestamp import Timestamp

from spark_sink.batches.batch_planner import BatchPlanner, PlannedBatch
from spark_sink.batches.event_rate import ReadStats, ReportInbox, report
from spark_sink.batches.read_task import ReadTask, TaskReader
from spark_sink.events.positions import AtTime, Position
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.stream.router_client import RouterClient
from tests.spark.conftest import DEPLOYMENTS, Shop

pytestmark = pytest.mark.xdist_group("spark")  # one cluster, one Spark


@contextmanager
def client(uri: str, **options: str) -> Iterator[RouterClient]:
    client = RouterClient(parse_options({"uri": uri, **options}))
    yield client
    client.close()


def planner(client: RouterClient, inbox: ReportInbox | None = None, **limits: Any) -> BatchPlanner:
    return BatchPlanner(client, StreamOptions("mongodb://127.0.0.1", **limits), inbox)


def read(client: RouterClient, tasks: list[ReadTask]) -> list[str]:
    tokens = []
    for task in tasks:
        reader = TaskReader(task, client.watch_events)
        tokens += [event["_id"]["_data"] for event in reader.events()]
        if task.report_to is not None:
            report(reader.stats, task.batch, task.report_to)
    return tokens


def tokens_in_batches(
    client: RouterClient, start: Position, max_events: int, events_per_task: int = 0
) -> list[list[str]]:
    """Plan and read the history so far in batches of this many events; return their tokens."""
    inbox = ReportInbox(client.address)
    planned = planner(client, inbox, events_per_partition=events_per_task)
    planned.stop_at_present()
    batches = []
    while (batch := planned.next_batch(start, max_events)).end != start:
        batches.append(read(client, planned.tasks(batch)))
        by_shard = planner(client).tasks(PlannedBatch(start, batch.end))
        assert len(by_shard) == len(client.shards() or ["the set"])
        assert sorted(read(client, by_shard)) == sorted(batches[-1])
        start = batch.end
    planned.close()
    inbox.close()
    return batches


@pytest.mark.parametrize("shop", DEPLOYMENTS, indirect=True)
@pytest.mark.parametrize("collection", [{}, {"collection": "orders"}], ids=str)
def test_batches_of_any_size_have_the_same_events(shop: Shop, collection) -> None:
    shop.insert(20)
    with shop.client.start_session() as session, session.start_transaction():
        numbers = range(500, 540)
        documents = [{"_id": number, "customer": number % 10} for number in numbers]
        shop.orders.insert_many(documents, session=session)
    shop.orders.drop()
    shop.shard_orders()
    shop.insert(10)
    shop.orders.rename("archive")
    shop.insert(5)
    shop.client.drop_database(shop.database)
    shop.insert(3)
    with client(shop.uri, database=shop.database, **collection) as router:
        few, many = (
            list(chain(*tokens_in_batches(router, AtTime(shop.created), size, 5)))
            for size in (10, 1000)
        )
        assert router.cluster_id()  # a job refuses another one
    assert sorted(few) == sorted(many) == sorted(set(many))
    assert len(many) > 78


def test_unauthorized_reports_are_dropped() -> None:
    inbox, other = ReportInbox(("127.0.0.1", 1)), ReportInbox(("127.0.0.1", 1))
    passage = ReadStats(3, 900, Timestamp(5, 1), Timestamp(6, 2), 7)
    assert inbox.address is not None
    assert other.address is not None
    report(passage, 1, (*inbox.address[:2], other.address[2]))
    report(passage, 1, inbox.address)
    malformed: list[dict[str, Any]] = [{"events": 4.5}, {"size": None}, {"last": None}]
    for fields in malformed:
        report(replace(passage, **fields), 2, inbox.address)
    report(replace(passage, events=4), 2, inbox.address)
    assert inbox.read(2) == [replace(passage, events=4)]
    inbox.close()
    other.close()
