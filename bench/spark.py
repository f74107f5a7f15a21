"""The Spark source: the cost of planning and reading a backlog, and the speed into Parquet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from bench.processes import (
    ReplayedCluster,
    cpu_seconds,
    medians,
    replayed_cluster,
    router,
    run_json,
)
from bench.suite import Column, Options, Outcome, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, spread
from tests.harness.clusters import RealCluster, ServerBinaries

SHARDS = 4
SIZE = 600
EVENTS = 500_000
PER_BATCH = 50_000
DOCUMENTS = 200_000
SNAPSHOT_SHARDS = 2

READING = (
    Column("documents", "documents"),
    Column("ordering", "ordering"),
    Column("batch asked for", "per_batch", ","),
    Column("batches from", "smallest", ",.0f"),
    Column("to", "largest", ",.0f"),
    Column("planning ms a batch", "planning_ms", ".0f"),
    Column("planner µs/event", "planner_cpu", ".2f"),
    Column("task µs/event", "task_cpu", ".1f"),
    Column("router µs/event", "router_cpu", ".1f"),
    Column("over-read", "over_read", ".2f"),
)
COSTS = (
    Column("in a new JVM", "cold_rate", ",.0f"),
    Column("planning ms a batch", "planning_ms", ".0f"),
    Column("planner µs/event", "planner", ".2f"),
    Column("router µs/event", "router", ".1f"),
    Column("tasks µs/event", "tasks", ".1f"),
    Column("JVM µs/event", "jvm", ".1f"),
    Column("of it, compilers", "compilers", ".1f"),
)
PARQUET = (
    Column("documents", "documents"),
    Column("partitions", "partitions"),
    Column("cores", "cores"),
    Column("batch asked for", "per_batch", ","),
    Column("events/s into Parquet", "parquet_rate", ",.0f"),
    *COSTS,
)


def run(options: Options) -> Outcome:
    """Measure planning and reading without Spark, then the whole with Spark."""
    events = options.scaled(EVENTS, EVENTS // 4)
    large = options.scaled(4 * PER_BATCH, PER_BATCH)
    reading: list[dict[str, Any]] = []
    parquet: list[dict[str, Any]] = []
    with replayed_cluster(SHARDS, events, SIZE) as cluster:
        for documents, ordering, per_batch in (
            ("json", "perDocument", PER_BATCH),
            ("typed", "perDocument", PER_BATCH),
            ("raw", "perDocument", PER_BATCH),
            ("raw", "perDocument", PER_BATCH // 5),
            ("raw", "total", PER_BATCH),
        ):
            options.say(f"reading {documents}, {ordering}, {per_batch} a batch")
            case: dict[str, Any] = {"documents": documents, "ordering": ordering}
            case["per_batch"] = per_batch
            runs = [read(cluster, case) for _ in range(options.runs)]
            reading.append({**case, **medians(runs)})
            _say(options, READING, reading[-1])
        for documents, ordering, cores, per_batch in (
            ("raw", "perDocument", 2, PER_BATCH),
            ("raw", "perDocument", 2, large),
            ("raw", "perDocument", 1, PER_BATCH),
            ("raw", "total", 2, PER_BATCH),
            ("typed", "perDocument", 2, PER_BATCH),
            ("json", "perDocument", 2, PER_BATCH),
            ("envelope", "perDocument", 2, PER_BATCH),
        ):
            options.say(f"into Parquet: {documents}, {ordering}, {cores} cores, {per_batch}")
            arguments = (documents, ordering, cores, per_batch)
            runs = [write(cluster, *arguments) for _ in range(options.runs)]
            partitions = 1 if ordering == "total" else SHARDS
            case = {"documents": documents, "partitions": partitions, "cores": cores}
            case["per_batch"] = per_batch
            parquet.append({**case, **medians(runs)})
            _say(options, PARQUET, parquet[-1])
    snapshots = [snapshot(options)] if options.real_binaries is not None else []
    return Outcome(
        [
            Table(
                f"A backlog of {events:,} events over {SHARDS} shards, {SIZE} bytes each (medians)",
                READING,
                reading,
                note="CPU of the parts; over-read: bytes sent by the shards to bytes of events.",
            ),
            Table(
                "The same through Spark, all on this machine",
                PARQUET,
                parquet,
                note="Each JVM writes the backlog three times: the figures are of the last time, "
                'and "in a new JVM" of the first. Envelope: Debezium\'s messages, by to_debezium. '
                "The replaying shards use the rest of the CPU.",
            ),
            *snapshots,
        ]
    )


SUITE = Suite("spark", "What does the Spark source cost, and how fast is it?", run)


def read(cluster: ReplayedCluster, case: dict[str, Any]) -> dict[str, float]:
    """Plan and read the backlog once through a new router.

    Returns the figures of ``bench.spark_reading``, the router's CPU µs per event, and the ratio of
    the bytes that the shards sent to the bytes of the events.
    """
    with router(cluster.configdb) as (port, pid):
        before, sent = cpu_seconds(pid), _written(cluster.pid)
        arguments = {"port": port, "events": int(cluster.events * 0.9)}
        arguments |= {name.replace("_", "-"): value for name, value in case.items()}
        flags = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
        figures = run_json("-m", "bench.spark_reading", *flags, timeout=600)
        passed = figures["events"]
        return {
            **figures,
            "router_cpu": (cpu_seconds(pid) - before) / passed * 1e6,
            "over_read": (_written(cluster.pid) - sent) / (passed * SIZE),
        }


def write(
    cluster: ReplayedCluster,
    documents: str,
    ordering: str,
    cores: int,
    per_batch: int,
    tables: Sequence[str] = (),
) -> dict[str, float]:
    """Write the backlog in a new JVM: Parquet files by a query, or tables of a job.

    Returns the figures of ``bench.spark_parquet``.

    Raises:
        RuntimeError: the table does not hold every event exactly once.
    """
    with router(cluster.configdb) as (port, pid):
        flags = ["--port", str(port), "--router", str(pid), "--per-batch", str(per_batch)]
        flags += ["--documents", documents, "--ordering", ordering, "--cores", str(cores)]
        flags += ["--tables", *tables] if tables else []
        figures = run_json("-m", "bench.spark_parquet", *flags, timeout=900)
    if figures["rows"] != cluster.events:
        raise RuntimeError(f"{figures['rows']} rows of {cluster.events} events")
    return figures


def snapshot(options: Options) -> Table:
    """Read a collection of real servers by Spark snapshots and by pymongo, in turns."""
    documents = options.scaled(DOCUMENTS, DOCUMENTS // 4)
    binaries = options.real_binaries
    assert binaries is not None
    options.say(f"snapshots of {documents:,} documents")
    with RealCluster(ServerBinaries(binaries), SNAPSHOT_SHARDS, noop_interval=1) as cluster:
        spread(cluster)
        with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
            collection = client[DATABASE][COLLECTION]
            pad = "x" * (SIZE - 50)
            for first in range(0, documents, 5000):
                numbers = range(first, min(documents, first + 5000))
                batch = [{"_id": n, "s": n % SNAPSHOT_SHARDS, "pad": pad} for n in numbers]
                collection.insert_many(batch, ordered=False)
        with router(cluster.configdb, "--upstream", cluster.mongos_uri) as (port, _):
            flags = ["--router", f"mongodb://127.0.0.1:{port}", "--mongos", cluster.mongos_uri]
            flags += ["--namespace", f"{DATABASE}.{COLLECTION}", "--documents", str(documents)]
            rates = run_json("-m", "bench.spark_snapshot", *flags, timeout=600)
    return Table(
        f"A collection of {documents:,} documents of {SIZE} bytes, two threads (medians)",
        (
            Column("Spark snapshot, json: documents/s", "json", ",.0f"),
            Column("raw", "raw", ",.0f"),
            Column("pymongo", "pymongo", ",.0f"),
            Column("json / pymongo", "json_ratio", ".2f"),
            Column("raw / pymongo", "raw_ratio", ".2f"),
        ),
        [
            {
                **rates,
                "json_ratio": rates["json"] / rates["pymongo"],
                "raw_ratio": rates["raw"] / rates["pymongo"],
            }
        ],
        note="MongoDB's own servers, two shards. Spark's reading includes its planning and its "
        "start of a job; pymongo reads through mongos into dicts.",
    )


def _say(options: Options, columns: tuple[Column, ...], row: dict[str, Any]) -> None:
    options.say("; ".join(f"{column.heading} {column.text(row)}" for column in columns))


def _written(pid: int) -> int:
    """Return the bytes that a process has written, mostly to sockets (`write` and `writev`)."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise RuntimeError(f"no wchar of process {pid}")
