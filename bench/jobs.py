"""A job's tables: events a second of a backlog, documents of a snapshot, and small batches."""

from typing import Any

from pymongo import MongoClient

from bench.processes import medians, replayed_cluster, router, run_json
from bench.spark import COSTS, SHARDS, SIZE, write
from bench.suite import Column, Options, Outcome, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, spread
from tests.harness.clusters import RealCluster, ServerBinaries, start_cluster
from tests.harness.routers import start_router

EVENTS = 2_000_000
PER_BATCH = 200_000
DOCUMENTS = 1_000_000
SNAPSHOT_SHARDS = 2
SECONDS = 60
FORMS = ("raw", "json", "typed")
TRIGGERS = ("100 milliseconds", "1 second")

BACKLOG = (
    Column("documents", "documents"),
    Column("tables", "tables"),
    Column("events/s", "parquet_rate", ",.0f"),
    *COSTS,
)
SNAPSHOTS = (
    Column("documents", "form"),
    Column("tables", "tables"),
    Column("documents/s", "rate", ",.0f"),
    Column("CPU µs/document", "cpu", ".1f"),
)
SMALL = (
    Column("trigger", "trigger"),
    Column("batches", "batches"),
    Column("driver's part ms p50", "driver_p50", ",.0f"),
    Column("p99", "driver_p99", ",.0f"),
    Column("of it, planning p50", "planning_p50", ",.0f"),
    Column("commits p50", "commits_p50", ",.0f"),
    Column("Spark's jobs ms p50", "jobs_p50", ",.0f"),
    Column("from write to commit ms p50", "fresh_p50", ",.0f"),
    Column("p99 ", "fresh_p99", ",.0f"),
)


def run(options: Options) -> Outcome:
    """Measure the tables bronze and current of jobs."""
    tables = [backlog(options), small_batches(options)]
    if options.real_binaries is not None:
        tables.append(snapshots(options))
    return Outcome(tables)


SUITE = Suite("jobs", "How fast does a job write Delta tables, and how late?", run)


def backlog(options: Options) -> Table:
    """Write a backlog of replayed events."""
    events = options.scaled(EVENTS, EVENTS // 5)
    rows: list[dict[str, Any]] = []
    with replayed_cluster(SHARDS, events, SIZE) as cluster:
        for tables in (("bronze",), ("bronze", "current")):
            for form in FORMS:
                runs = [
                    write(cluster, form, "perDocument", 2, PER_BATCH, tables)
                    for _ in range(options.runs)
                ]
                case = {"documents": form, "tables": ", ".join(tables)}
                rows.append({**case, **medians(runs)})
                _say(options, BACKLOG, rows[-1])
    return Table(
        f"A backlog of {events:,} inserts over {SHARDS} shards, {SIZE} bytes each (medians)",
        BACKLOG,
        rows,
        note=f"Batches of {PER_BATCH:,} events. Each JVM writes the backlog three times: the "
        'figures are of the last time, and "in a new JVM" of the first. The replaying shards use '
        "the rest of the CPU.",
    )


def small_batches(options: Options) -> Table:
    """Follow documents that are written one by one."""
    seconds = options.scaled(SECONDS, SECONDS // 4)
    rows = []
    with (
        start_cluster(SHARDS) as cluster,
        start_router(cluster.configdb, upstream=f"mongodb://{cluster.mongos}/") as through,
    ):
        spread(cluster)
        for trigger in TRIGGERS:
            flags = ["--router", through.uri, "--mongos", cluster.mongos_uri]
            flags += ["--trigger", trigger, "--seconds", str(seconds), "--shards", str(SHARDS)]
            rows.append({"trigger": trigger, **run_json("-m", "bench.job_batches", *flags)})
            _say(options, SMALL, rows[-1])
        servers = "real servers" if cluster.real else "embedded cluster"
    return Table(
        f"Small batches into bronze and current, {SHARDS} shards, {servers}",
        SMALL,
        rows,
        note=f"50 inserts a second for {seconds} s. The driver's part of a batch is its time "
        "without that of Spark's jobs; it reads these batches itself. Planning waits for events. A "
        "write ends with its commit in the current table.",
    )


def snapshots(options: Options) -> Table:
    """Write a snapshot of a collection on MongoDB's own servers."""
    documents = options.scaled(DOCUMENTS, DOCUMENTS // 10)
    assert options.real_binaries is not None
    rows = []
    with RealCluster(ServerBinaries(options.real_binaries), SNAPSHOT_SHARDS) as cluster:
        spread(cluster)
        with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
            collection = client[DATABASE][COLLECTION]
            pad = "x" * (SIZE - 50)
            for first in range(0, documents, 5000):
                numbers = range(first, min(documents, first + 5000))
                batch = [{"_id": n, "s": n % SNAPSHOT_SHARDS, "pad": pad} for n in numbers]
                collection.insert_many(batch, ordered=False)
        with router(cluster.configdb, "--upstream", cluster.mongos_uri) as (port, _):
            for tables in (["bronze"], ["bronze", "current"]):
                for form in ("raw", "json"):
                    flags = ["--router", f"mongodb://127.0.0.1:{port}", "--documents", form]
                    flags += ["--tables", *tables, "--snapshot", str(documents)]
                    found = run_json("-m", "bench.job_batches", *flags, timeout=900)
                    case = {"form": form, "tables": ", ".join(tables)}
                    rows.append({**case, **found})
                    _say(options, SNAPSHOTS, rows[-1])
    return Table(
        f"A snapshot of {documents:,} documents of {SIZE} bytes",
        SNAPSHOTS,
        rows,
        note="MongoDB's own servers, two shards. The second snapshot in one JVM, from the first "
        "batch to the last; CPU of the JVM and its workers.",
    )


def _say(options: Options, columns: tuple[Column, ...], row: dict[str, Any]) -> None:
    options.say("; ".join(f"{column.heading} {column.text(row)}" for column in columns))
