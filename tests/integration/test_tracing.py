"""A running router sends spans to a collector, and does without one that does not answer."""

import os
from pathlib import Path

import pytest

from tests.harness.clusters import Client, TestCluster
from tests.harness.collector import Collector
from tests.harness.ports import free_port
from tests.harness.routers import RouterProcess, run_command, start_router
from tests.harness.server_settings import write_secret
from tests.harness.until import wait_for

SECRET = "swordfish"


def settings(folder: Path, endpoint: str) -> Path:
    """Return a configuration file with traces."""
    headers = write_secret(folder / "headers", "x-token: t0ken\n")
    config = folder / "router.yaml"
    config.write_text(f"tracing:\n  endpoint: {endpoint}\n  headersFile: {headers}\n")
    return config


def watch_through_an_outage(cluster: TestCluster, router: RouterProcess) -> None:
    """Read an event with its document, cut the stream's cursors, and read until they go on."""

    def going_on() -> set[str]:
        lines = [line for line in router.logs() if line["msg"] == "remote cursor resumed"]
        return {line["attr"]["remote"] for line in lines}

    with Client(router.uri) as client:
        orders = client.traced.orders
        orders.insert_one({"_id": SECRET})
        only = [{"$match": {"documentKey._id": SECRET}}]
        with orders.watch(only, full_document="updateLookup") as stream:
            orders.update_one({"_id": SECRET}, {"$set": {"n": 1}})
            assert next(stream)["fullDocument"] == {"_id": SECRET, "n": 1}
            for shard in cluster.shards:
                cluster.kill_cursors(shard)
            orders.update_one({"_id": SECRET}, {"$set": {"n": 2}})
            assert next(stream)["fullDocument"]["n"] == 2
            wait_for(
                lambda: stream.try_next() is None and going_on() >= set(cluster.shards),
                "the cursors to read again",
            )
        orders.drop()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_s_opening_lookups_and_outages_are_spans(
    cluster: TestCluster, tmp_path: Path, workers: int
) -> None:
    with Collector() as collector:
        config = settings(tmp_path, collector.endpoint)
        with start_router(
            cluster.configdb, cluster.mongos_uri, config=config, workers=workers
        ) as router:
            watch_through_an_outage(cluster, router)
            assert router.stop() == 0
    (stream,) = collector.named("open change stream")
    assert stream.parent == b""
    assert stream.attributes == {
        "db.system.name": "mongodb",
        "db.namespace": "traced",
        "db.collection.name": "orders",
        "mergerouter.readers": 1,
    }
    assert stream.resource["service.name"] == "mergerouter"
    assert ("service.instance.id" in stream.resource) == (workers > 1)
    (remotes,) = collector.named("open remotes")
    assert remotes.parent == stream.span_id
    openings = collector.named("open remote cursor")
    first = [each for each in openings if each.parent == remotes.span_id]
    opened = {each.attributes["mergerouter.replica_set"] for each in first}
    assert opened == {*cluster.shards, "config"}
    assert all(each.attributes["server.port"] for each in first)
    outages = collector.named("reopen remote cursor")
    assert {each.parent for each in outages} == {b""}
    assert not any(each.failed for each in outages), "the cursors read again"
    assert {each.parent for each in openings} == {
        remotes.span_id,
        *(each.span_id for each in outages),
    }
    for outage in outages:
        assert outage.attributes["mergerouter.replica_set"] in cluster.shards
        assert outage.attributes["mergerouter.cause"]
    assert [each.attributes["mergerouter.events"] for each in collector.named("look documents up")]
    assert collector.tokens == {"t0ken"}
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_a_collector_that_does_not_answer_costs_no_events(
    cluster: TestCluster, tmp_path: Path
) -> None:
    config = settings(tmp_path, f"http://127.0.0.1:{free_port()}/v1/traces")
    with start_router(cluster.configdb, cluster.mongos_uri, config=config) as router:
        watch_through_an_outage(cluster, router)
        assert router.stop() == 0
        libraries = [line["attr"].get("library", "") for line in router.logs() if "attr" in line]
        assert [each for each in libraries if each.startswith("opentelemetry.")]
        own = [line for line in router.logs() if "library" not in line.get("attr", {})]
        assert own[-1]["msg"] == "Shut down"


def test_check_config_tries_the_collector(cluster: TestCluster, tmp_path: Path) -> None:
    def check(endpoint: str) -> tuple[int, str]:
        config = settings(tmp_path, endpoint)
        command = ("check-config", "--config", config, "--configdb", cluster.configdb)
        done = run_command(*command, env={**os.environ, "MERGEROUTER_NET__PORT": "0"})
        return done.returncode, done.stdout

    with Collector() as collector:
        endpoint = collector.endpoint
        status, printed = check(endpoint)
        assert status == 0, printed
        assert f"ok   tracing.endpoint {endpoint}\n" in printed
        assert collector.tokens == {"t0ken"}
    status, printed = check(endpoint)
    assert status == 1
    assert f"FAIL tracing.endpoint {endpoint}: does not answer" in printed
