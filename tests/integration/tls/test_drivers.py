"""Drivers on a router between which and the cluster there is TLS only."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pymongo
import pytest

from tests.drivers.download_cache import DownloadError
from tests.drivers.node_packages import node_packages
from tests.harness.clusters import Client
from tests.harness.until import PATIENCE

NODE_TESTS = Path(__file__).parents[1] / "node"


def test_pymongo(uri: str, router: Any) -> None:
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


@pytest.fixture(scope="module")
def node_modules() -> Path:
    try:
        return node_packages(NODE_TESTS / "package.json")
    except DownloadError as error:
        pytest.skip(str(error))


def test_node_s_driver(uri: str, router: Any, node_modules: Path) -> None:
    finished = subprocess.run(
        ["node", "transaction.js", uri, "db", f"node{router.port}"],
        cwd=NODE_TESTS,
        env={**os.environ, "NODE_PATH": str(node_modules)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == ["written", "first", "second"]


@pytest.mark.timeout(300)
def test_mongosh(uri: str, router: Any, node_modules: Path) -> None:
    mongosh = node_modules / ".bin" / "mongosh"
    if not mongosh.exists():
        pytest.skip("npm could not install mongosh")
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
    finished = subprocess.run(
        [mongosh, "--quiet", "--norc", uri, "--eval", script],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == ["written", "first", "second"]
