"""The servers of the differential test: a cluster, its mongos, and a router on it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.differential.seeds import Servers
from tests.harness.clusters import start_real_cluster
from tests.harness.routers import start_router


@contextmanager
def running(shards: int, on: Path | None, parameters: Mapping[str, str]) -> Iterator[Servers]:
    """Run a cluster of real servers and a router during the block.

    Args:
        shards: the number of shards.
        on: a JSON file that describes a running cluster: mongos, configdb, shards.
        parameters: the router's parameters.

    Raises:
        pytest.skip.Exception: real servers are not available.
    """
    if on is not None:
        known = json.loads(on.read_text())
        with routed(known["mongos"], known["configdb"], known["shards"], parameters) as servers:
            yield servers
        return
    with (
        start_real_cluster(shards, noop_interval=1) as cluster,
        routed(cluster.mongos, cluster.configdb, cluster.shards, parameters) as servers,
    ):
        yield servers


@contextmanager
def routed(
    mongos: str, configdb: str, shards: dict[str, Any], parameters: Mapping[str, str]
) -> Iterator[Servers]:
    """Run a router on a running cluster during the block."""
    hosts = {**shards, "config": configdb}
    members = {name: f"mongodb://{host.partition('/')[2]}/" for name, host in hosts.items()}
    with start_router(
        configdb, upstream=f"mongodb://{mongos}/", set_parameter=dict(parameters)
    ) as router:
        yield Servers(int(mongos.rpartition(":")[2]), router.port, members)
