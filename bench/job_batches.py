"""Run a job that follows a writer, or that reads a snapshot; print figures of its batches."""

import argparse
import json
import os
import re
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import quantiles
from typing import Any

from deltalake import DeltaTable
from pymongo import MongoClient
from pyspark.sql import SparkSession

from bench.processes import cpu_seconds
from bench.watched_writes import COLLECTION, DATABASE
from spark_sink import local_session
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.tables_job import BRONZE, CURRENT, TablesJob
from spark_sink.tables.delta_log import DeltaLog

NAMESPACE = f"{DATABASE}.{COLLECTION}"
WRITES_A_SECOND = 50
WARM_UP = 10.0
"""Seconds of writes that are not counted."""


def main() -> None:
    """Run the job that the command line describes and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--router", required=True, help="connection string")
    parser.add_argument("--documents", default="json")
    parser.add_argument("--tables", nargs="+", default=[BRONZE, CURRENT])
    parser.add_argument("--mongos", help="connection string for the writer")
    parser.add_argument("--trigger", default="1 second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--snapshot", type=int, help="read as many documents, without a writer")
    args = parser.parse_args()
    settings = {"spark.ui.showConsoleProgress": "false"}
    spark = local_session("bench", settings=settings)
    found: dict[str, float] = {}
    if args.snapshot:
        for _ in range(2):
            found = snapshot(spark, args)
    else:
        found = followed(spark, args)
    spark.stop()
    print(json.dumps(found))


def snapshot(spark: SparkSession, args: argparse.Namespace) -> dict[str, float]:
    """Write a snapshot; return documents a second, and CPU µs a document."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        used = cpu_seconds(os.getpid())
        query = _job(folder, args, {"snapshotMode": "initial_only"}).start(spark, None)
        query.awaitTermination()
        used = cpu_seconds(os.getpid()) - used
        took = [each["durationMs"].get("triggerExecution", 0) for each in query.recentProgress]
        # One row more marks the end of the snapshot.
        rows = DeltaLog(str(folder / BRONZE)).count() - 1
    if rows != args.snapshot:
        raise RuntimeError(f"{rows} rows of {args.snapshot} documents")
    return {"rate": rows / sum(took) * 1e3, "cpu": used / rows * 1e6}


def followed(spark: SparkSession, args: argparse.Namespace) -> dict[str, float]:
    """Write documents while the job runs; return times of its batches and of the documents."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query = _job(folder, args, {}).start(spark, args.trigger)
        while query.lastProgress is None:
            if query.awaitTermination(0.1):  # type: ignore[arg-type]
                raise RuntimeError("the job has ended")
        begun = time.time() + WARM_UP
        last = write(args.mongos, args.shards, WARM_UP + args.seconds)
        while written(folder) < last:
            if query.awaitTermination(0.1):  # type: ignore[arg-type]
                raise RuntimeError("the job has ended")
        progress = query.recentProgress
        query.stop()
        late = lateness(folder, begun)
    jobs = job_times(spark)
    warm = [each for each in progress if _phases(each, "addBatch")][-int(args.seconds * 5) :]
    warm = warm[len(warm) // 5 :]
    within = [jobs.get(each["batchId"], 0.0) for each in warm]
    driver = [_phases(each) - took for each, took in zip(warm, within, strict=True)]
    commits = [_phases(each, "addBatch") - took for each, took in zip(warm, within, strict=True)]
    planning = [_phases(each, "latestOffset") for each in warm]
    return {
        "batches": len(warm),
        "driver_p50": share(driver, 50),
        "driver_p99": share(driver, 99),
        "planning_p50": share(planning, 50),
        "commits_p50": share(commits, 50),
        "jobs_p50": share(within, 50),
        "fresh_p50": share(late, 50),
        "fresh_p99": share(late, 99),
    }


def write(uri: str, shards: int, seconds: float) -> int:
    """Insert documents at a steady rate; return the number of the last one."""
    begun = time.time()
    number = 0
    pause = threading.Event()
    with MongoClient[dict[str, Any]](uri) as client:
        documents = client[DATABASE][COLLECTION]
        documents.delete_many({})
        while time.time() < begun + seconds:
            number += 1
            documents.insert_one({"_id": number, "s": number % shards, "at": time.time()})
            pause.wait(max(0.0, begun + number / WRITES_A_SECOND - time.time()))
    return number


def written(folder: Path) -> int:
    """Return the number of the last document in bronze."""
    if not DeltaLog(str(folder / BRONZE)).exists:
        return 0
    return max((each["_id"] for each, _ in inserted(folder)), default=0)


def inserted(folder: Path) -> list[tuple[dict[str, Any], int]]:
    """Return the inserted documents, and the numbers of their batches."""
    table = DeltaTable(folder / BRONZE).to_pyarrow_table(columns=["op", "fullDocument", "batch"])
    return [
        (json.loads(row["fullDocument"]), row["batch"])
        for row in table.to_pylist()
        if row["op"] == "c"
    ]


def lateness(folder: Path, since: float) -> list[float]:
    """Return the ms from the writes of documents to the commits of their batches."""
    commits = DeltaTable(folder / CURRENT).history()
    committed = {
        each["mergerouter"]["batch"]: each["timestamp"]
        for each in commits
        if "batch" in each.get("mergerouter", {})
    }
    return [
        committed[batch] - document["at"] * 1e3
        for document, batch in inserted(folder)
        if document["at"] >= since and batch in committed
    ]


def job_times(spark: SparkSession) -> dict[int, float]:
    """Return the ms of Spark's jobs, by the numbers of their batches."""
    found: dict[int, float] = defaultdict(float)
    context: Any = spark.sparkContext
    jobs = context._jsc.sc().statusStore().jobsList(None)
    for index in range(jobs.size()):
        job = jobs.apply(index)
        text = job.description()
        number = re.search(r"batch = (\d+)", text.get() if text.isDefined() else "")
        if number is not None and job.completionTime().isDefined():
            took = job.completionTime().get().getTime() - job.submissionTime().get().getTime()
            found[int(number[1])] += took
    return found


def _phases(progress: Any, name: str = "triggerExecution") -> float:
    """Return the ms of a phase of a batch, by default of all."""
    return float(progress["durationMs"].get(name, 0))


def share(values: list[float], percent: int) -> float:
    """Return a percentile."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def _job(folder: Path, args: argparse.Namespace, options: dict[str, str]) -> TablesJob:
    where = JobFolder(str(folder))
    given = {"documents": args.documents, **options}
    given |= {"database": DATABASE, "collection": COLLECTION}
    record = JobRecord((NAMESPACE,), given, tuple(args.tables))
    where.begin(record)
    return TablesJob(where, record, args.router)


if __name__ == "__main__":
    main()
