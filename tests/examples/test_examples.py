"""Every example runs as described in its README and prints the changes."""

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import kubernetes_validate
import pymongo
import pytest
import yaml
from deltalake import DeltaTable

from spark_sink import Job
from tests.drivers.download_cache import DownloadError
from tests.drivers.node_packages import node_packages
from tests.harness.clusters import start_cluster
from tests.harness.routers import RouterProcess, start_router
from tests.spark.quick_session import QUICK

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE_PACKAGES = Path(__file__).parents[1] / "integration" / "node" / "package.json"
_SECONDS = 150.0
"""Seconds for an example to print its lines."""


@pytest.fixture(scope="module")
def router() -> Iterator[RouterProcess]:
    with (
        start_cluster(shards=2) as cluster,
        start_router(cluster.configdb, cluster.mongos_uri, feed=True) as router,
    ):
        yield router


@pytest.fixture
def orders(router: RouterProcess) -> Iterator[Any]:
    client: pymongo.MongoClient[dict[str, Any]]
    with pymongo.MongoClient(router.uri) as client:
        client.shop.orders.insert_one({"_id": "earlier"})
        yield client.shop.orders
        client.drop_database("shop")


@contextmanager
def running(*command: str, **environment: str) -> Iterator[Any]:
    """Run an example; yield a function that returns its next line."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stdout is not None
    late = threading.Timer(_SECONDS, process.kill)
    late.start()
    try:
        yield process.stdout.readline
    finally:
        late.cancel()
        process.send_signal(signal.SIGTERM)
        process.wait(_SECONDS)
        process.stdout.close()


def test_pymongo_resumes_after_a_restart_and_a_drop(
    router: RouterProcess, orders: Any, tmp_path: Path
) -> None:
    command = (sys.executable, str(EXAMPLES / "watch_pymongo.py"), router.uri, str(tmp_path / "t"))
    with running(*command) as next_line:
        assert next_line() == "watching\n"
        orders.insert_one({"_id": 1})
        assert next_line() == "insert 1\n"
        orders.update_one({"_id": 1}, {"$set": {"paid": True}})
        assert next_line() == "update 1\n"
        # A change's token is stored before the next change is printed.
        orders.insert_one({"_id": 2})
        assert next_line() == "insert 2\n"
    orders.delete_one({"_id": 1})
    with running(*command) as next_line:
        assert next_line() == "watching\n"
        # The run above may have ended before it stored the last change's token.
        line = next_line()
        assert (next_line() if line == "insert 2\n" else line) == "delete 1\n"
        orders.drop()
        assert [next_line() for _ in range(3)] == ["drop None\n", "invalidate None\n", ""]
    with running(*command) as next_line:
        assert next_line() == "watching\n"
        orders.insert_one({"_id": 3})
        assert next_line() == "insert 3\n"


def test_motor_prints_changes(router: RouterProcess, orders: Any) -> None:
    with running(sys.executable, str(EXAMPLES / "watch_motor.py"), router.uri) as next_line:
        assert next_line() == "watching\n"
        orders.insert_one({"_id": 1})
        assert next_line() == "insert 1\n"


def test_node_prints_changes(router: RouterProcess, orders: Any) -> None:
    try:
        modules = node_packages(NODE_PACKAGES)
    except DownloadError as error:
        pytest.skip(str(error))
    example = str(EXAMPLES / "watch_node.js")
    with running("node", example, router.uri, NODE_PATH=str(modules)) as next_line:
        assert next_line() == "watching\n"
        orders.insert_one({"_id": 1})
        assert next_line() == "insert 1\n"


def test_the_feed_prints_changes(router: RouterProcess, orders: Any) -> None:
    example = str(EXAMPLES / "read_feed.py")
    with running(sys.executable, example, "127.0.0.1", str(router.feed_port)) as next_line:
        assert next_line() == "watching\n"
        # The feed does not report when its stream is open, so write until a change arrives.
        first: list[str] = []
        reader = threading.Thread(target=lambda: first.append(next_line()))
        reader.start()
        number = 0
        while reader.is_alive():
            orders.insert_one({"_id": number})
            number += 1
            reader.join(0.05)
        assert first[0].startswith("insert ")


def test_spark_prints_changes(router: RouterProcess, orders: Any, tmp_path: Path) -> None:
    example = str(EXAMPLES / "follow_spark.py")
    with running(sys.executable, example, router.uri, str(tmp_path / "checkpoint")) as next_line:
        assert next_line() == "watching\n"
        orders.insert_one({"_id": 1})
        assert next_line() == 'insert {"_id":1}\n'
        orders.update_one({"_id": 1}, {"$set": {"paid": True}})
        assert next_line() == 'update {"_id":1}\n'


@pytest.mark.timeout(600)
def test_reports_have_all_writes_before_them(
    router: RouterProcess, orders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reads its writes at once, while a job of this process follows the collection."""
    out, total = str(tmp_path / "orders"), 0
    orders.delete_many({})
    settings = {"namespaces": ["shop.orders"], "trigger": "1 second", "conf": QUICK}
    script = yaml.safe_load((EXAMPLES / "cronjob.yaml").read_text())
    kubernetes_validate.validate(script, "1.31", strict=True)
    [container] = script["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    variables = {"orders_out": out, "orders_uri": router.uri}
    airflow = ModuleType("airflow.sdk")
    tasks: list[Callable[[], str]] = []
    airflow.__dict__.update(
        Variable=SimpleNamespace(get=variables.get),
        dag=lambda **_: lambda define: define,
        task=lambda **_: lambda work: lambda: tasks.append(work),
    )
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", airflow)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    importlib.import_module("airflow_orders")
    [of_airflow] = tasks
    environment = {**os.environ, "OUT": out, "MERGEROUTER_URI": router.uri}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"

    def of_kubernetes() -> str:
        done = subprocess.run(
            container["command"], cwd=EXAMPLES, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    with Job(out, uri=router.uri, **settings).start() as job:
        for number, report in enumerate((of_airflow, of_kubernetes), 1):
            orders.insert_one({"total": number})
            total += number
            assert report() == f"{number} orders, total {total}"
        with pymongo.MongoClient(router.uri) as client, client.start_session() as session:
            client.shop.orders.insert_one({"total": 5}, session=session)
            assert session.operation_time is not None
            job.wait(session.operation_time)
        assert DeltaTable(f"{out}/current").to_pyarrow_table().num_rows == 3
        [status] = job.status()
        assert (status["tables"], status["lagSeconds"] < 900) == (["bronze", "current"], True)
        outcomes = job.verify()
        assert {each.count for each in outcomes.values()} == {0}
