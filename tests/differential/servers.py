"""The servers of the differential test: a cluster, its mongos, and a router on it."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.differential.seeds import Servers
from tests.harness.clusters import start_real_cluster
from tests.harness.routers import start_router
from tests.harness.server_settings import ServerSettings

_ALWAYS = {"shareFilters": "always", "shareScopes": "always"}
WAYS: dict[str, dict[str, str]] = {
    "default": {},
    # Two streams are enough for both to move while they are read, as does one that falls behind.
    "early": {"shareFiltersFrom": "2", "shareScopesFrom": "2", "shareLogBytes": "100000"},
    "always": _ALWAYS,
    "moving": _ALWAYS,
}
"""The routers' parameters by their ways of sharing; ``moving`` is the one of moving_router.py."""

_SETTINGS = ServerSettings(noop_interval=1, cache_gb=1.0)
"""Several updates of documents of 15 MB fill the smallest cache: the server then stands still."""


@contextmanager
def running(shards: int, ways: Collection[str]) -> Iterator[Servers]:
    """Run a cluster of real servers and a router for each way of sharing during the block.

    Args:
        shards: the number of shards.
        ways: keys of WAYS.

    Raises:
        pytest.skip.Exception: real servers are not available.
    """
    with (
        start_real_cluster(shards, settings=_SETTINGS) as cluster,
        routed(cluster.mongos, cluster.configdb, cluster.shards, ways) as servers,
    ):
        yield servers


@contextmanager
def routed(
    mongos: str, configdb: str, shards: dict[str, Any], ways: Collection[str] = tuple(WAYS)
) -> Iterator[Servers]:
    """Run routers on a running cluster during the block."""
    hosts = {**shards, "config": configdb}
    members = {name: f"mongodb://{host.partition('/')[2]}/" for name, host in hosts.items()}
    with ExitStack() as stack:
        ports = {}
        for way in ways:
            router = start_router(
                configdb,
                upstream=f"mongodb://{mongos}/",
                set_parameter=dict(WAYS[way]),
                program="tests.differential.moving_router" if way == "moving" else "router.cli",
            )
            ports[way] = stack.enter_context(router).port
        yield Servers(int(mongos.rpartition(":")[2]), ports, members)
