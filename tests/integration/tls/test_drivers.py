"""Drivers on a router that connects to the cluster over TLS."""

from typing import Any

from tests.harness.clusters import Client
from tests.harness.node import NodePrograms


def test_pymongo_reads_and_writes_over_tls(uri: str, router: Any) -> None:
    with Client(uri) as client:
        collection = client.db[f"pymongo{router.port}"]
        collection.insert_one({"_id": "before"})
        with collection.watch(max_await_time_ms=1000) as stream:
            stream.try_next()
            collection.insert_one({"_id": "written"})
            with client.start_session() as session, session.start_transaction():
                collection.insert_one({"_id": "first"}, session=session)
                collection.insert_one({"_id": "second"}, session=session)
            seen = [stream.next()["documentKey"]["_id"] for _ in range(3)]
        assert seen == ["written", "first", "second"]
        large = "x" * 10_000_000
        with collection.watch() as stream:
            collection.insert_one({"_id": "large", "value": large})
            assert stream.next()["fullDocument"]["value"] == large


def test_node_s_driver_reads_and_writes_over_tls(uri: str, router: Any, node: NodePrograms) -> None:
    seen = node.run("transaction.js", uri, "db", f"node{router.port}")
    assert seen == ["written", "first", "second"]
