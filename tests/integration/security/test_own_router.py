"""A job's own router on a cluster with a key file and users."""

from pathlib import Path

import pytest

from spark_sink.errors import SourceError
from spark_sink.jobs.job_settings import JobSettings
from spark_sink.jobs.router_beside import require_cluster, router_beside
from tests.harness.clusters import Client, TestCluster
from tests.harness.ports import free_port
from tests.harness.server_settings import ROOT


def test_it_takes_key_file_and_user_from_a_configuration_file(
    secured: TestCluster, key_file: Path, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(ROOT)
    config = tmp_path / "router.yaml"
    config.write_text(
        f"sharding: {{configDB: {secured.configdb}}}\n"
        f"upstream: mongodb://{secured.mongos}\n"
        f"net: {{port: 1}}\n"  # the connection string has another port
        f"security: {{keyFile: {key_file}, user: {ROOT}, passwordFile: {password}}}\n"
    )
    uri = f"mongodb://{ROOT}:{ROOT}@{address}/"
    with (
        router_beside(JobSettings(out="x", uri=uri, router_config=str(config))),
        Client(uri) as client,
        client.shop.orders.watch() as stream,
    ):
        require_cluster({"uri": uri})
        client.shop.orders.insert_one({"_id": "of a job's own router"})
        assert next(stream)["operationType"] == "insert"
    with pytest.raises(SourceError, match="cannot be reached"):
        require_cluster({"uri": uri})
