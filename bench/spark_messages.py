"""Read a snapshot by Spark, or follow a stream; print documents a second, or when each arrived."""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.processes import cpu_seconds, own_cpu_seconds
from bench.watched_writes import COLLECTION, DATABASE
from spark_sink import local_session
from spark_sink.debezium import to_debezium
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.tables_job import BRONZE, TablesJob
from spark_sink.tables.delta_log import DeltaLog

ROUNDS = 3
"""How often a snapshot is read: the figures are of the last time."""


def main() -> None:
    """Do what the command line says and print figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("snapshot", "latency"))
    parser.add_argument("--uri", required=True, help="the router's")
    parser.add_argument("--form", choices=("json", "messages", "delta"), required=True)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument(
        "--first", type=int, default=0, help="the _id of the first whose arrival counts"
    )
    args = parser.parse_args()
    spark = local_session("bench", cores=2)
    with tempfile.TemporaryDirectory() as folder:
        work = snapshot if args.what == "snapshot" else latency
        print(json.dumps(work(spark, args, Path(folder))), flush=True)
    spark.stop()


def snapshot(spark: SparkSession, args: argparse.Namespace, __: Path) -> dict[str, Any]:
    """Return documents a second, and the CPU of all of Spark in µs per document."""
    found: dict[str, Any] = {}
    for _ in range(ROUNDS):
        rows = _rows(spark.read.format("mergerouter").option("mode", "snapshot"), args)
        used, begun = _spark_seconds(), time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - begun
        cpu = (_spark_seconds() - used) / args.events * 1e6
        found = {"rate": args.events / seconds, "engine_cpu": cpu}
    return found


def latency(spark: SparkSession, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return when the event of each document came, by `_id`; for a table when it was read."""
    arrivals: dict[int, float] = {}
    stream = spark.readStream.format("mergerouter")
    if args.form == "delta":
        where = JobFolder(str(folder))
        options = {"database": DATABASE, "collection": COLLECTION, "snapshotMode": "no_data"}
        record = JobRecord((), options, (BRONZE,))
        where.begin(record)
        query = TablesJob(where, record, args.uri).start(spark, "0 seconds")
        _started(query)
        print("running", flush=True)
        table = DeltaLog(str(folder / BRONZE))
        count = 0
        while len(arrivals) < args.events and query.isActive:
            if table.reload() and table.count() > count:
                now, count = time.perf_counter(), table.count()
                for rows in table.scan(["documentKey"]):
                    for (key,) in zip(*rows.to_pydict().values(), strict=True):
                        if (number := json.loads(key)["_id"]) >= args.first:
                            arrivals.setdefault(number, now)
            time.sleep(0.005)
        return _stopped(query, arrivals)

    def note(frame: DataFrame, _: int) -> None:
        found = frame.select("key" if args.form == "messages" else "documentKey").collect()
        now = time.perf_counter()
        for (key,) in found:
            decoded = json.loads(key)
            number = decoded["_id"] if args.form == "json" else json.loads(decoded["id"])
            if number >= args.first:
                arrivals[number] = now

    rows = _rows(stream, args)
    query = rows.writeStream.foreachBatch(note).option("checkpointLocation", str(folder)).start()
    _started(query)
    print("running", flush=True)
    while len(arrivals) < args.events and query.isActive:
        time.sleep(0.05)
    return _stopped(query, arrivals)


def _stopped(query: Any, arrivals: dict[int, float]) -> dict[str, Any]:
    """Stop a query and return the figures; raise its failure if it had one."""
    if (failure := query.exception()) is not None:
        raise failure
    query.stop()
    return {"arrivals": arrivals}


def _rows(reader: Any, args: argparse.Namespace) -> DataFrame:
    form = "raw" if args.form == "messages" else "json"
    options = {"uri": args.uri, "database": DATABASE, "collection": COLLECTION, "documents": form}
    rows: DataFrame = reader.options(**options).load()
    return to_debezium(rows, "p") if args.form == "messages" else rows


def _started(query: Any) -> None:
    """Wait until the query has planned its first batch, which fixes where it begins."""
    while query.lastProgress is None and query.isActive:
        time.sleep(0.05)


def _spark_seconds() -> float:
    return cpu_seconds(os.getpid()) - own_cpu_seconds(os.getpid())


if __name__ == "__main__":
    main()
