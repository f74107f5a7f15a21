"""Most kinds of faults, once, on real sets of three members under load.

``make faults`` runs the long form, and has the other kinds (docs/testing.md).
"""

from collections.abc import Iterator

import pytest

from tests.faults.run import run_faults, shard_the_data
from tests.faults.schedule import Faults
from tests.harness.clusters import start_real_cluster
from tests.harness.real_cluster import RealCluster

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with start_real_cluster(2, members=3, mongoses=2) as running:
        shard_the_data(running)
        yield running


def _let_all_happen(faults: Faults) -> None:
    faults.run_all(("kill_primary", "shard0", 3.0), ("lag_secondary", "shard1", 3.0))
    faults.run_all(("step_down", "shard1", 2.0), ("kill_primary", "config", 3.0))
    faults.run("add_shard")
    faults.run_all(("partition_primary", "shard0", 4.0), ("kill_cursors", "shard1", 0.0))
    faults.run_all(("hang_primary", "shard1", 6.0), ("kill_router", "", 0.2))
    faults.run("remove_shard")
    faults.run_all(
        ("remove_secondary", "shard0", 1.0),
        ("remove_primary", "shard1", 1.0),
        ("step_down", "config", 2.0),
    )


def test_every_event_arrives_once_in_order_under_each_fault(cluster: RealCluster) -> None:
    report = run_faults(cluster, 1, _let_all_happen)
    print("\n".join(report.summary))
    assert report.problems == []
    assert report.writes > 100
