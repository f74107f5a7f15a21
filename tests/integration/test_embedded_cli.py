"""The ``mergerouter embedded`` program."""

import signal
import subprocess
import sys
from typing import Any

import pymongo
import pytest
from bson import Timestamp
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, EmbeddedProcess
from tests.harness.until import PATIENCE, wait_for


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quickly_despite_clients(number: signal.Signals) -> None:
    impatient = {"serverSelectionTimeoutMS": 100}
    with EmbeddedProcess(2, {}) as cluster:
        client: Client
        with (
            pymongo.MongoClient(cluster.mongos_uri, **impatient) as client,
            cluster.direct("shard0", **impatient) as shard,
        ):
            client.a.b.insert_one({"_id": 1})
            session = client.start_session()
            session.start_transaction()
            client.a.b.insert_one({"_id": 2}, session=session)
            shard.watch().try_next()
            cluster.process.send_signal(number)
            assert cluster.process.wait(PATIENCE) == 0
    assert '"Stopped"' in cluster.logs[-1]


def test_port_and_number_of_shards_can_be_chosen() -> None:
    with EmbeddedProcess(1, {}) as first:
        port = first.mongos.partition(":")[2]
    with EmbeddedProcess(5, {"port": port}) as second:
        assert second.mongos == f"127.0.0.1:{port}"
        assert list(second.shards) == [f"shard{i}" for i in range(5)]
        taken = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"--port={port}"], capture_output=True, timeout=30
        )
        assert taken.returncode == 48
        assert b"Cannot start" in taken.stdout
        assert b"Traceback" not in taken.stderr


PROGRAM = "import typer; from embedded.cli import embedded; typer.run(embedded)"


@pytest.mark.parametrize(("version", "wire", "token"), [(1, 17, "2B02"), (2, 27, "2B04")])
def test_the_token_version_selects_the_server_version(version: int, wire: int, token: str) -> None:
    with EmbeddedProcess(1, {"token_version": version}) as cluster:
        client: Client
        with pymongo.MongoClient(cluster.mongos_uri) as client, cluster.direct("shard0") as shard:
            assert client.admin.command("hello")["maxWireVersion"] == wire
            assert shard.admin.command("hello")["maxWireVersion"] == wire
            with shard.watch() as stream:
                client.a.b.insert_one({"_id": 1})
                assert next(stream)["_id"]["_data"][18:22] == token


def test_the_oplog_is_bounded_and_idle_servers_write_noops() -> None:
    with EmbeddedProcess(1, {"oplog_size": 50, "noop_interval": 0.05}) as cluster:
        client: Client
        with pymongo.MongoClient(cluster.mongos_uri) as client, cluster.direct("shard0") as shard:
            start = shard.admin.command("ping")["operationTime"]
            client.a.b.insert_many([{"_id": i} for i in range(500)])
            with pytest.raises(OperationFailure) as error:
                shard.a.watch(start_at_operation_time=Timestamp(start.time, start.inc))
            assert error.value.code == 286
            before = _operation_time(shard)
            wait_for(lambda: _operation_time(shard) > before, "a no-op")


def _operation_time(client: Any) -> Timestamp:
    return client.admin.command("ping")["operationTime"]
