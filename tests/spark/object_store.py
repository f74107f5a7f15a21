"""``make object-store``: a job whose tables are on an object store that fails again and again.

A local stand-in of S3, a cluster and a router; writes go on all the time. Between the outages the
job's host stalls, and another one takes over with a checkpoint of its own. In the end each
event is in the tables once, they equal the collections, and the job's commands read them, all
without Hadoop's client.
"""

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import bson
from bson.timestamp import Timestamp
from deltalake import DeltaTable

from spark_sink import local_session, read_at
from spark_sink.events.positions import AtTime, key_of
from spark_sink.jobs.history.recovery import rebuild_table
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.source.offsets import Offset
from spark_sink.verification.verify_job import verify_job
from tests.harness.clusters import start_cluster
from tests.harness.object_store import BUCKET, object_store
from tests.harness.routers import start_router
from tests.harness.until import wait_for
from tests.spark.conftest import Shop
from tests.spark.kills.job_process import JobProcess
from tests.spark.tables import change_at_random, collections_of, documents_in

_SECONDS = 300.0
_COLUMNS = ["token", "op", "snapshot"]
_OUT = f"s3://{BUCKET}/job"


def run(seed: int, outages: int, folder: Path, *, stalls: int = 0) -> list[str]:
    """Return what is wrong in the end, after some outages and some stalls."""
    chance = random.Random(seed)
    with object_store() as store, start_cluster(2, noop_interval=1) as cluster:
        os.environ.update(store.environment)
        with start_router(cluster.configdb, upstream=cluster.mongos_uri) as router:
            shop = Shop(router.uri, "shop", cluster.shards, writes_to=cluster.mongos_uri)
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
                for number in range(stalls):
                    other = JobProcess(
                        router.uri, folder / f"other {number}", ["shop"], _OPTIONS, _OUT
                    )
                    _take_over(job, other, shop, chance)
                    print(f"stall {number + 1}: batch {job.committed}", flush=True)
                for number in range(2):  # the stream passes the reads of a late snapshot
                    last, then = shop.now(), collections_of(shop)
                    shop.client.shop.items.insert_one({"_id": number})
                    _wait_until(job, last)
                if (status := job.end()) != 0:
                    return [f"SIGTERM ended the job with {status}"]
                return [*_problems(shop), *_problems_of_readers(shop.uri, last, then)]
            finally:
                job.kill()
                shop.client.close()


_OPTIONS = {"snapshotMode": "initial", "maxEventsPerTrigger": "50", "snapshotChunkRows": "50"}


def _take_over(job: JobProcess, other: JobProcess, shop: Shop, chance: random.Random) -> None:
    """Let another host write batches while a job's own stalls, and then go on."""
    change_at_random(shop, chance.randrange(10**6), 60)
    time.sleep(chance.uniform(0, 1.5))
    job.pause()
    try:
        change_at_random(shop, chance.randrange(10**6), 60)
        for _ in range(2):
            _wait_for_batch(other)
        if chance.randrange(2):
            assert other.end() == 0
        job.resume()
        told = len(job.log.read_text())
        wait_for(lambda: job.has_ended, "the end of the start that was paused", _SECONDS)
        assert "another start" in job.log.read_text()[told:], job.last_output()
    finally:
        other.kill()
    _wait_for_batch(job)


def _wait_for_batch(job: JobProcess) -> None:
    before = job.committed

    def later() -> bool:
        job.keep_running()
        return job.committed > before

    try:
        wait_for(later, "a batch", _SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}; the job: {job.last_output()}") from None


def _wait_until(job: JobProcess, time: Timestamp) -> None:
    """Wait until the job has passed a cluster time."""

    def done() -> bool:
        job.keep_running()
        offset = job.folder.checkpoint.offset(job.committed)
        return bool(offset) and key_of(Offset.of(offset).position) > key_of(AtTime(time))

    wait_for(done, "the last write", _SECONDS)


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


def _problems_of_readers(
    uri: str, time: Timestamp, then: dict[tuple[str, str], dict[str, Any]]
) -> list[str]:
    """Return what `job verify`, `job rebuild` and `read_at` do not find on the store.

    `then` are the documents at that time.
    """
    problems = []
    spark, folder = local_session(), JobFolder(_OUT)
    try:
        for name, each in verify_job(spark, folder, uri).items():
            if each.count or each.remark:
                problems.append(f"verify of {name}: {each}")
        made = rebuild_table(spark, folder, time, f"s3://{BUCKET}/restored")
        tables = {
            "rebuilt": made.log.read(spark),
            "read": read_at(spark, _OUT, f"{time.time},{time.inc}")["current"],
        }
        for name, rows in tables.items():
            if documents_in(rows) != then:
                problems.append(f"the {name} table was not what the collections were")
    finally:
        spark.stop()
    return problems


def main() -> None:
    """Run one seed, and end with status 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outages", type=int, default=3)
    parser.add_argument("--stalls", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = run(given.seed, given.outages, Path(folder), stalls=given.stalls)
    print("\n".join(problems) or "each event is in the tables once")
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
