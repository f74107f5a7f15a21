"""The ``mergerouter embedded`` program."""

import signal
import subprocess
import sys

import pytest

from tests.harness.clusters import Client, EmbeddedProcess
from tests.harness.until import PATIENCE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quickly_despite_clients(number: signal.Signals) -> None:
    impatient = {"serverSelectionTimeoutMS": 100}
    with (
        EmbeddedProcess(2, {}) as cluster,
        Client(cluster.mongos_uri, **impatient) as client,
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
