"""Drivers on a router that connects to the cluster over TLS."""

from typing import Any

import pymongo
import pytest

from tests.harness.clusters import Client
from tests.harness.node import NodePrograms


def test_pymongo_reads_and_writes_over_tls(uri: str, router: Any) -> None:
    client: Client
    with pymongo.MongoClient(uri) as client:
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


@pytest.mark.timeout(300)
def test_mongosh_reads_and_writes_over_tls(uri: str, router: Any, node: NodePrograms) -> None:
    name = f"mongosh{router.port}"
    script = f"""
        const d = db.getSiblingDB("db");
        d.createCollection("{name}");
        const stream = d.{name}.watch([], {{maxAwaitTimeMS: 500}});
        stream.tryNext();
        d.{name}.insertOne({{_id: "written"}});
        const session = db.getMongo().startSession();
        session.startTransaction();
        session.getDatabase("db").{name}.insertOne({{_id: "first"}});
        session.getDatabase("db").{name}.insertOne({{_id: "second"}});
        session.commitTransaction();
        const seen = [];
        while (seen.length < 3) {{
          const event = stream.tryNext();
          if (event) seen.push(event.documentKey._id);
        }}
        print(JSON.stringify(seen));
    """
    assert node.mongosh(uri, script) == ["written", "first", "second"]
