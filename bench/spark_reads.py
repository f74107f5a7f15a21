"""Read a snapshot by Spark, or follow a stream; print documents a second, or when each arrived."""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import bson
from pyspark.sql import DataFrame, SparkSession

from bench.kernel import cpu_seconds, own_cpu_seconds
from bench.spark_backlog import make_job
from bench.writes import COLLECTION, DATABASE
from spark_sink import local_session
from spark_sink.debezium import to_debezium
from spark_sink.jobs.job_tables import BRONZE
from spark_sink.tables.delta_log import DeltaLog

ROUNDS = 3
"""How often a snapshot is read: the figures are of the last time."""


def main() -> None:
    """Do what the command line says and print figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("snapshot", "latency"))
    parser.add_argument("--uri", required=True, help="the router's")
    parser.add_argument("--form", choices=("json", "raw", "messages"), default="json")
    parser.add_argument("--tables", nargs="+", default=[], help="by a job that writes these tables")
    parser.add_argument("--events", type=int, help="documents of a snapshot")
    parser.add_argument("--trigger", default="0 seconds", help="of a job")
    parser.add_argument("--until", type=int, help="the _id of the last document that is followed")
    args = parser.parse_args()
    spark = local_session("bench", cores=2)
    figures: dict[str, Any] = {}
    for _ in range(ROUNDS if args.what == "snapshot" else 1):
        with tempfile.TemporaryDirectory() as folder:
            work = snapshot if args.what == "snapshot" else latency
            figures = work(spark, args, Path(folder))
    print(json.dumps(figures), flush=True)
    spark.stop()


def snapshot(spark: SparkSession, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return documents a second, and the CPU of all of Spark in µs per document.

    The rows go into the tables of a job, or are dropped.
    """
    used, begun = _spark_seconds(), time.perf_counter()
    if args.tables:
        options = {**_options(args), "snapshotMode": "initial_only"}
        query = make_job(folder, args.tables, options).start(spark, None)
        query.awaitTermination()
        took = [
            progress["durationMs"].get("triggerExecution", 0) for progress in query.recentProgress
        ]
        seconds = sum(took) / 1e3
        # One row more marks the end of the snapshot.
        rows = DeltaLog(str(folder / BRONZE)).count() - 1
        if rows != args.events:
            raise RuntimeError(f"{rows} rows of {args.events} documents")
    else:
        frame = _rows(spark.read.format("mergerouter").option("mode", "snapshot"), args)
        frame.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - begun
    used = _spark_seconds() - used
    return {"rate": args.events / seconds, "engine_cpu": used / args.events * 1e6}


def latency(spark: SparkSession, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return when the event of each document came, by `_id`; for a table when it was read."""
    arrivals: dict[int, float] = {}

    def note(frame: DataFrame, _: int) -> None:
        rows = frame.select("key" if args.form == "messages" else "documentKey").collect()
        now = time.perf_counter()
        for (key,) in rows:
            decoded = _key(key)
            arrivals[json.loads(decoded["id"]) if args.form == "messages" else decoded["_id"]] = now

    if args.tables:
        options = {**_options(args), "snapshotMode": "no_data"}
        query = make_job(folder, args.tables, options).start(spark, args.trigger)
    else:
        rows = _rows(spark.readStream.format("mergerouter"), args).writeStream.foreachBatch(note)
        query = rows.option("checkpointLocation", str(folder)).start()
    # The first batch, once it is planned, fixes where the stream begins.
    while query.lastProgress is None and query.isActive:
        time.sleep(0.05)
    print("running", flush=True)
    count, table = 0, DeltaLog(str(folder / BRONZE)) if args.tables else None
    while args.until not in arrivals and query.isActive:
        if table is not None and table.reload() and table.count() > count:
            now, count = time.perf_counter(), table.count()
            for columns in table.rows(["documentKey"]):
                for key in filter(None, columns["documentKey"].to_pylist()):
                    arrivals.setdefault(_key(key)["_id"], now)
        time.sleep(0.005)
    if (failure := query.exception()) is not None:
        raise failure
    query.stop()
    return {"arrivals": arrivals}


def _key(stored: str | bytes) -> dict[str, Any]:
    """Return a document's key, of BSON for raw documents and of JSON for others."""
    key: dict[str, Any] = json.loads(stored) if isinstance(stored, str) else bson.decode(stored)
    return key


def _options(args: argparse.Namespace) -> dict[str, str]:
    form = "raw" if args.form == "messages" else args.form
    return {"uri": args.uri, "database": DATABASE, "collection": COLLECTION, "documents": form}


def _rows(reader: Any, args: argparse.Namespace) -> DataFrame:
    rows: DataFrame = reader.options(**_options(args)).load()
    return to_debezium(rows, "p") if args.form == "messages" else rows


def _spark_seconds() -> float:
    return cpu_seconds(os.getpid()) - own_cpu_seconds(os.getpid())


if __name__ == "__main__":
    main()
