"""``make object-store``: a job whose tables are on an object store that fails again and again.

A local stand-in of S3, an embedded cluster and a router; writes go on all the time. In the end each
event is in the tables once, and they equal the collections.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import bson
from deltalake import DeltaTable

from spark_sink.events.positions import AtTime, key_of
from spark_sink.jobs.status import offset_position
from tests.harness.clusters import start_cluster
from tests.harness.object_store import BUCKET, object_store
from tests.harness.routers import start_router
from tests.harness.until import wait_for
from tests.spark.conftest import Shop
from tests.spark.kills.job_process import JobProcess
from tests.spark.test_current_tables import change_at_random, collections_of

_SECONDS = 300.0
_COLUMNS = ["token", "op", "snapshot"]
_OUT = f"s3://{BUCKET}/job"


def run(seed: int, outages: int, folder: Path) -> list[str]:
    """Return what is wrong in the end."""
    chance = random.Random(seed)
    with object_store() as store, start_cluster(2, noop_interval=1) as cluster:
        os.environ.update(store.environment)
        with start_router(cluster.configdb, upstream=cluster.mongos_uri) as router:
            shop = Shop(cluster, router, "shop", writes_to=cluster.mongos_uri)
            shop.insert(200)
            job = JobProcess(router.uri, folder / "checkpoint", ["shop"], _OPTIONS, _OUT)
            try:
                _wait_for_batch(job)
                for number in range(outages):
                    change_at_random(shop, chance.randrange(10**6), 60)
                    time.sleep(chance.uniform(0, 1.5))
                    store.stop()
                    change_at_random(shop, chance.randrange(10**6), 20)
                    time.sleep(chance.uniform(1, 15))  # clients wait, or give up
                    store.start()
                    _wait_for_batch(job)
                    print(
                        f"outage {number + 1}: batch {job.committed}, start {job.starts}",
                        flush=True,
                    )
                with shop.client.start_session() as session:
                    shop.client.shop.items.insert_one({"_id": 1}, session=session)
                    assert session.operation_time is not None
                    reached = key_of(AtTime(session.operation_time))

                def done() -> bool:
                    job.keep_running()
                    position = offset_position(job.folder.offset(job.committed))
                    return position is not None and key_of(position) > reached

                wait_for(done, "the last write", _SECONDS)
                if (status := job.end()) != 0:
                    return [f"SIGTERM ended the job with {status}"]
                return _problems(shop)
            finally:
                job.kill()
                shop.client.close()


_OPTIONS = {"snapshotMode": "initial", "maxEventsPerTrigger": "50", "snapshotChunkRows": "50"}


def _wait_for_batch(job: JobProcess) -> None:
    before = job.committed

    def later() -> bool:
        job.keep_running()
        return job.committed > before

    try:
        wait_for(later, "a batch", _SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}; the job: {job.last_output()}") from None


def _problems(shop: Shop) -> list[str]:
    rows = DeltaTable(f"{_OUT}/current").to_pyarrow_table().to_pylist()
    table = {(row["collection"], row["key"]): bson.decode(row["document"]) for row in rows}
    problems = []
    if len(table) != len(rows) or table != collections_of(shop):
        problems.append("the current table is not what the collections are")
    rows = DeltaTable(f"{_OUT}/bronze").to_pyarrow_table(columns=_COLUMNS).to_pylist()
    tokens = Counter(row["token"] for row in rows if row["op"] and not row["snapshot"])
    problems += [f"{token} is in bronze {n} times" for token, n in tokens.items() if n > 1]
    print(f"{len(table)} documents, {len(tokens)} events")
    return problems


def main() -> None:
    """Run one seed, and end with status 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outages", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = run(given.seed, given.outages, Path(folder))
    print("\n".join(problems) or "each event is in the tables once")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
