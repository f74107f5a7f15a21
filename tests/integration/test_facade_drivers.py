"""Real drivers on the router: one connection string for reads, writes and change streams."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.synchronous.collection import Collection

from tests.harness.clusters import Client, TestCluster, shard
from tests.harness.node import NodePrograms
from tests.harness.routers import RouterProcess, start_router

_AWAIT_MS = 2000


@pytest.fixture(scope="module")
def router(cluster: TestCluster) -> Iterator[RouterProcess]:
    with start_router(cluster.configdb, cluster.mongos_uri) as started:
        yield started


@pytest.fixture(scope="module")
def client(router: RouterProcess) -> Iterator[MongoClient[dict[str, Any]]]:
    with Client(router.uri) as connected:
        yield connected


@pytest.fixture
def collection(client: MongoClient[dict[str, Any]]) -> Collection[dict[str, Any]]:
    """Return a new collection, sharded so that both shards have documents."""
    name = f"c{uuid.uuid4().hex[:8]}"
    shard(client, f"facade.{name}", {"_id": 1}, "shard0", {50: "shard1"})
    return client.facade[name]


@pytest.mark.parametrize("compressor", ["zlib", "snappy", "zstd"])
def test_drivers_can_compress_connections(
    compressor: str, router: RouterProcess, collection: Collection[dict[str, Any]]
) -> None:
    with Client(router.uri, compressors=compressor) as client:
        hello = client.admin.command("hello", compression=[compressor])
        assert hello["compression"] == [compressor]
        same = client.facade[collection.name]
        with same.watch(max_await_time_ms=_AWAIT_MS) as stream:
            same.insert_one({"_id": 1, "pad": "x" * 10_000})
            assert stream.next()["fullDocument"]["pad"] == "x" * 10_000


@pytest.mark.timeout(600)  # npm may first have to install the packages
def test_node_s_driver_watches(
    router: RouterProcess, collection: Collection[dict[str, Any]], node: NodePrograms
) -> None:
    seen = node.run("watch.js", router.uri, "facade", collection.name)
    assert sorted(seen["inserted"]) == list(range(0, 100, 5))
    assert seen["resumed"] == seen["inserted"][1:]
    assert seen["helloStreamed"]


@pytest.mark.timeout(600)
def test_mongosh_watches(
    router: RouterProcess, collection: Collection[dict[str, Any]], node: NodePrograms
) -> None:
    script = f"""
        const c = db.getSiblingDB("facade").getCollection("{collection.name}");
        const stream = c.watch([], {{maxAwaitTimeMS: 500}});
        stream.tryNext();
        c.insertMany([{{_id: 1}}, {{_id: 99}}]);
        const seen = [];
        while (seen.length < 2) {{
          const event = stream.tryNext();
          if (event) seen.push(event.documentKey._id);
        }}
        print(JSON.stringify({{seen, count: c.countDocuments(), msg: db.hello().msg}}));
    """
    seen = node.mongosh(router.uri, script)
    assert seen == {"seen": seen["seen"], "count": 2, "msg": "isdbgrid"}
    assert sorted(seen["seen"]) == [1, 99]
