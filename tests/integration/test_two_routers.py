"""Two routers of one cluster serve a client as two mongoses do."""

from contextlib import closing

import pytest

from spark_sink.options.stream_options import parse_options
from spark_sink.snapshot.plan import Chunk, Collection
from spark_sink.snapshot.reader import SnapshotTask
from spark_sink.source.tasks import read_task
from spark_sink.stream.router_client import RouterClient
from tests.harness.clusters import Client, TestCluster
from tests.harness.routers import start_router


def test_a_snapshot_planned_on_one_router_is_read_on_the_other(cluster: TestCluster) -> None:
    """The other router has no streams, and so does not know the snapshot's time."""
    given = {"database": "snapshots", "connect.max.attempts": "2"}
    with (
        start_router(cluster.configdb, cluster.mongos_uri) as first,
        start_router(cluster.configdb, cluster.mongos_uri) as second,
    ):
        planned, read = (parse_options({"uri": each.uri, **given}) for each in (first, second))
        with (
            closing(RouterClient(planned)) as one,
            closing(RouterClient(read)) as other,
            Client(planned.uri) as client,
        ):
            for number in range(100):  # the other router may learn a time from its health checks
                client.snapshots.c.update_one({"_id": 1}, {"$set": {"n": number}}, upsert=True)
                time = one.snapshot_time()
                if other.clocks().cluster_time < time:
                    break
            else:
                pytest.fail("the other router always knows the time of the snapshot")
            task = SnapshotTask(Chunk(Collection("snapshots", "c")), time)
            assert sum(batch.num_rows for batch in read_task(task, read)) == 1
