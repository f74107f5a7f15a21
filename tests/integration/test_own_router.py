"""A job starts its own router where none answers, and ends it."""

import pytest

from spark_sink.errors import OptionError, SourceError
from spark_sink.jobs.job_settings import JobSettings
from spark_sink.jobs.router_beside import require_cluster, router_beside
from tests.harness.clusters import TestCluster
from tests.harness.ports import free_port


def settings_of(uri: str, **more: str) -> JobSettings:
    return JobSettings.model_validate({"out": "x", "uri": uri, **more})


def test_a_router_runs_for_the_block(cluster: TestCluster) -> None:
    uri = f"mongodb://127.0.0.1:{free_port()}/"
    upstream = cluster.mongos_uri.rstrip("/")
    with router_beside(settings_of(uri, configdb=cluster.configdb, upstream=upstream)):
        require_cluster({"uri": uri})
        with router_beside(settings_of(uri, configdb="cfg/127.0.0.1:1")):
            require_cluster({"uri": uri})
        require_cluster({"uri": uri})
    with pytest.raises(SourceError, match="cannot be reached"):
        require_cluster({"uri": uri})


def test_the_cause_is_told_where_it_does_not_start() -> None:
    with (
        pytest.raises(SourceError, match=r"does not start: sharding\.configDB: must be setName"),
        router_beside(settings_of("mongodb://127.0.0.1:27999", configdb="localhost:1")),
    ):
        pass


def test_it_is_for_this_machine() -> None:
    with (
        pytest.raises(OptionError, match=r"--uri must name one port of 127\.0\.0\.1"),
        router_beside(settings_of("mongodb://127.0.0.1:1,127.0.0.1:2", configdb="cfg/h:1")),
    ):
        pass
