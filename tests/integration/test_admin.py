"""The admin port of a running router, with one process and with workers."""

import re
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest

from tests.harness.admin import get
from tests.harness.clusters import TestCluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "two-workers"])
def router(cluster: TestCluster, request: pytest.FixtureRequest) -> Iterator[RouterProcess]:
    with start_router(
        cluster.configdb, cluster.mongos_uri, workers=request.param, admin_port=0
    ) as started:
        yield started


def metric(text: str, name: str, labels: str = "") -> float:
    """Return the sum of a metric's samples whose labels contain ``labels``."""
    assert f"# TYPE mergerouter_{name} " in text
    found = re.findall(rf"^mergerouter_{name}(\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for its_labels, value in found if labels in its_labels)


def test_a_router_on_a_cluster_is_ready(router: RouterProcess) -> None:
    assert get(router.admin_port, "/healthz").text == "ok\n"
    assert get(router.admin_port, "/readyz").text == "ready\n"


def test_events_are_counted_in_and_out(router: RouterProcess) -> None:
    with pymongo.MongoClient[dict[str, Any]](router.uri) as client:
        before = get(router.admin_port, "/metrics").text
        with client.admin_port.c.watch() as stream:
            client.admin_port.c.insert_many([{"n": number} for number in range(10)])
            for _ in range(10):
                next(stream)
            text = get(router.admin_port, "/metrics").text
            assert metric(text, "cursors") == 1
            assert metric(text, "watermark_lag_seconds", "shard0") < 60
            assert metric(text, "streams_held") == 1
            assert metric(text, "member_cursors") == 3
            assert metric(text, "history_left_seconds", 'place="cursor"') > 0
        for name, of in (("received_events_total", 'shard="shard'), ("delivered_events_total", "")):
            assert metric(text, name, of) - metric(before, name, of) == 10, name
        assert metric(text, "workers") == metric(text, "workers_expected")
        assert metric(text, "replica_set_up") == 3
        # The cursor is closed: its client may come back with its resume token.
        after = get(router.admin_port, "/metrics").text
        assert metric(after, "history_left_seconds", 'place="departed"') > 0


async def test_a_client_may_not_ask_for_a_worker_s_status(router: RouterProcess) -> None:
    client = await RawClient.connect(router.port)
    reply = await client.command("admin", {"_mergerouterProcessStatus": 1})
    assert reply["code"] == 59
