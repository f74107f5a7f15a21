"""The admin port of a running router, with one process and with workers."""

import json
import re
from collections.abc import Iterator

import pytest
from pymongo.errors import OperationFailure

from tests.harness.admin import get
from tests.harness.clusters import Client, TestCluster
from tests.harness.raw_client import RawClient
from tests.harness.routers import RouterProcess, start_router
from tests.harness.until import wait_for


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "two-workers"])
def router(cluster: TestCluster, request: pytest.FixtureRequest) -> Iterator[RouterProcess]:
    with start_router(
        cluster.configdb, cluster.mongos_uri, workers=request.param, admin_port=0
    ) as started:
        yield started


def metric(text: str, name: str, labels: str = "", kind: str = "") -> float:
    """Return the sum of a metric's samples whose labels contain ``labels``.

    ``kind`` is the name of the metric, if the samples have a suffix.
    """
    assert f"# TYPE mergerouter_{kind or name} " in text
    samples = re.findall(rf"^mergerouter_{name}(\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for its_labels, value in samples if labels in its_labels)


def test_a_router_on_a_cluster_is_ready(router: RouterProcess) -> None:
    assert get(router.admin_port, "/healthz").text == "ok\n"
    assert get(router.admin_port, "/readyz").text == "ready\n"


def test_events_are_counted_in_and_out(router: RouterProcess) -> None:
    with Client(router.uri) as client:
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
        for name in ("low_watermark_wait_seconds", "reply_delay_seconds"):
            counts = [metric(each, f"{name}_count", kind=name) for each in (before, text)]
            assert counts[1] > counts[0], name
        assert metric(text, "workers") == metric(text, "workers_expected")
        assert metric(text, "replica_set_up") == 3
        # The cursor is closed: its client may come back with its resume token.
        after = get(router.admin_port, "/metrics").text
        assert metric(after, "history_left_seconds", 'place="departed"') > 0


def test_streams_of_one_namespace_are_told_apart(router: RouterProcess) -> None:
    matches = [[{"$match": {"operationType": kind}}] for kind in ("insert", "delete")]
    with (
        Client(router.uri, appname="first") as first,
        Client(router.uri, appname="second") as second,
        first.apart.c.watch(matches[0]),
        second.apart.c.watch(matches[1], show_expanded_events=True),
    ):
        view = json.loads(get(router.admin_port, "/status.json").text)
        page = get(router.admin_port, "/").text
    asked = {
        (row["worker"], row["stream"]): row["pipeline"]
        for row in view["stream_rows"]
        if row["namespace"] == "apart.c"
    }
    read = {
        row["client"].rpartition(" ")[2]: asked[row["worker"], row["stream"]]
        for row in view["client_rows"]
        if row["namespace"] == "apart.c"
    }
    assert read == {
        "first": '{$match: {operationType: "insert"}}',
        "second": '{showExpandedEvents: true}, {$match: {operationType: "delete"}}',
    }
    assert "{$match: {operationType: &#34;delete&#34;}}" in page


def test_a_client_that_stops_reading_is_behind_and_no_shard_is(router: RouterProcess) -> None:
    with (
        Client(router.uri, appname="reports") as reports,
        Client(router.uri) as client,
        reports.admin_port.reports.watch() as stopped,
        client.admin_port.c.watch() as stream,
    ):
        assert stopped.try_next() is None

        def only_the_stopped_one_is_behind() -> bool:
            client.admin_port.c.insert_one({})
            next(stream)
            text = get(router.admin_port, "/metrics").text
            lags = re.findall(r"^mergerouter_watermark_lag_seconds.* (\S+)$", text, re.MULTILINE)
            assert len(lags) == 3
            others = [*lags, metric(text, "client_lag_seconds", 'namespace="admin_port.c"')]
            behind = metric(text, "client_lag_seconds", 'client="reports at 127.0.0.1"')
            return behind >= 10 and max(map(float, others)) < 5

        wait_for(only_the_stopped_one_is_behind, "a client that is behind alone", 120)


def test_a_shard_that_hangs_is_down_until_it_answers(
    router: RouterProcess, cluster: TestCluster
) -> None:
    def up(labels: str = 'shard="shard0"') -> float:
        return metric(get(router.admin_port, "/metrics").text, "replica_set_up", labels)

    wait_for(lambda: up("") == 3, "all shards to be up")
    cluster.hang_member("shard0")
    try:
        wait_for(lambda: up() == 0, "a shard that is down", 60)
        assert up("") == 2
    finally:
        cluster.wake_member("shard0")
    wait_for(lambda: up() == 1, "a shard that is up again", 60)


async def test_a_client_may_not_ask_for_a_worker_s_status(router: RouterProcess) -> None:
    client = await RawClient.connect(router.port)
    reply = await client.command("admin", {"_mergerouterProcessStatus": 1})
    assert reply["code"] == 59


def test_the_log_level_changes_at_run_time_in_all_workers(
    router: RouterProcess, cluster: TestCluster
) -> None:
    with Client(router.uri) as client:
        assert client.admin.command({"setParameter": 1, "logLevel": 1})["was"] == 0
        for _ in range(10):  # new connections go to all workers
            with Client(router.uri) as other:
                assert other.admin.command({"getParameter": 1, "logLevel": 1})["logLevel"] == 1
        lines = [line for line in router.logs() if line.get("s") == "D1"]
        assert lines
        verbosity = {"verbosity": 0}
        reply = client.admin.command({"setParameter": 1, "logComponentVerbosity": verbosity})
        assert reply["was"] == {"verbosity": 1}
        if cluster.real:  # everything else is the upstream's
            with pytest.raises(OperationFailure, match="unrecognized parameter"):
                client.admin.command({"setParameter": 1, "nosuch": 1})
