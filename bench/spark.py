"""The Spark source and jobs: the cost of reading and writing, rates, and lateness."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from bench import current_tables, table_files
from bench.programs import flags, run_json, serve
from bench.replaying_cluster import ReplayedCluster, replayed_cluster
from bench.suite import Column, Options, Table, has_real_servers, medians, say_row
from bench.writes import fill, measure_latency, random_pauses, shard_evenly
from tests.harness.clusters import start_cluster, start_real_cluster

SHARDS, SIZE = 4, 600
EVENTS, PER_BATCH = 500_000, 50_000
JOB_EVENTS, JOB_BATCH = 2_000_000, 400_000
DOCUMENTS, SNAPSHOT_SHARDS = 1_000_000, 2
TRIGGERS = ("100 milliseconds", "1 second")
WRITES, PAUSE, SETTLE = 3_000, 0.02, 3.0
TABLES = (("bronze",), ("bronze", "current"))

BACKLOG = (
    Column("documents", "documents"),
    Column("into", "into"),
    Column("ordering", "ordering"),
    Column("cores", "cores"),
    Column("batch asked for", "per_batch", ","),
    Column("events/s", "rate", ",.0f"),
    Column("in a new JVM", "cold_rate", ",.0f"),
    Column("planning ms a batch", "planning_ms", ".0f"),
    Column("planner µs/event", "planner", ".2f"),
    Column("router µs/event", "source_cpu", ".1f"),
    Column("tasks µs/event", "tasks", ".1f"),
    Column("JVM µs/event", "jvm", ".1f"),
    Column("of it, compilers", "compilers", ".1f"),
)
SNAPSHOTS = (
    Column("documents", "form"),
    Column("tables", "into"),
    Column("documents/s", "rate", ",.0f"),
    Column("CPU µs/document", "engine_cpu", ".1f"),
)
SMALL_BATCHES = (
    Column("trigger", "trigger"),
    Column("from write to table ms p50", "p50", ",.0f"),
    Column("p99", "p99", ",.0f"),
)


def run(options: Options) -> list[Table]:
    """Measure queries, jobs and, in one process without Spark, batches of a current table."""
    events = options.scaled(EVENTS, EVENTS // 4)
    with replayed_cluster(SHARDS, events, SIZE) as cluster:
        backlogs = list(_backlogs(cluster, options))
    with replayed_cluster(SHARDS, options.scaled(JOB_EVENTS, EVENTS // 4), SIZE) as cluster:
        backlogs += [
            _backlog(cluster, options, form, per_batch=JOB_BATCH, into=into)
            for into in TABLES
            for form in ("raw", "json", "typed")
        ]
    tables = [
        Table(
            f"A backlog of {events:,} events over {SHARDS} shards, {SIZE} bytes each (medians)",
            BACKLOG,
            backlogs,
            note="Each JVM writes the backlog three times: the figures are of the last time, "
            'and "in a new JVM" of the first. Envelope: Debezium\'s messages, by to_debezium. '
            "A job's backlog is larger. The replaying shards use the rest of the CPU.",
        ),
        _small_batches(options),
    ]
    if has_real_servers():
        tables.append(_snapshots(options))
    return [*tables, current_tables.measure(options), table_files.measure(options)]


def _backlogs(cluster: ReplayedCluster, options: Options) -> Iterator[dict[str, Any]]:
    yield _backlog(cluster, options, "raw")
    yield _backlog(cluster, options, "raw", per_batch=options.scaled(4 * PER_BATCH, PER_BATCH))
    yield _backlog(cluster, options, "raw", cores=1)
    yield _backlog(cluster, options, "raw", ordering="total")
    for documents in ("typed", "json", "envelope"):
        yield _backlog(cluster, options, documents)


def _backlog(
    cluster: ReplayedCluster,
    options: Options,
    documents: str,
    *,
    ordering: str = "perDocument",
    cores: int = 2,
    per_batch: int = PER_BATCH,
    into: Sequence[str] = (),
) -> dict[str, Any]:
    """Write the backlog in new JVMs: Parquet files by a query, or tables of a job.

    Raises:
        RuntimeError: the table does not hold every event exactly once.
    """
    case = {"documents": documents, "ordering": ordering, "cores": cores, "per_batch": per_batch}
    runs = []
    for _ in range(options.runs):
        with serve(cluster.configdb) as (port, pid):
            wanted = flags(port=port, router=pid, **case, tables=into)
            figures = run_json("-m", "bench.spark_backlog", *wanted)
        if figures["rows"] != cluster.events:
            raise RuntimeError(f"{figures['rows']} rows of {cluster.events} events")
        runs.append(figures)
    row = {**case, "into": ", ".join(into) or "Parquet", **medians(runs)}
    say_row(BACKLOG, row)
    return row


def _small_batches(options: Options) -> Table:
    """Follow documents that are written one by one into the tables of a job."""
    rows, firsts = [], count(1_000_000, 1_000_000)
    with (
        start_cluster(SHARDS) as cluster,
        serve(cluster.configdb, f"--upstream={cluster.mongos_uri}") as (port, _),
    ):
        shard_evenly(cluster)
        for trigger in TRIGGERS:
            arguments = ["bench.spark_reads", "latency", "--tables", *TABLES[1]]
            arguments += ["--uri", f"mongodb://127.0.0.1:{port}", "--trigger", trigger]
            writes = options.scaled(WRITES, WRITES // 6)
            pauses = random_pauses(writes, PAUSE)
            figures = measure_latency(
                cluster.mongos_uri, next(firsts), pauses, *arguments, settle=SETTLE
            )
            rows.append({"trigger": trigger, **figures})
            say_row(SMALL_BATCHES, rows[-1])
        servers = "real servers" if cluster.real else "embedded cluster"
    title = f"Small batches into bronze and current, {SHARDS} shards, {servers}"
    note = f"{1 / PAUSE:.0f} inserts a second, until bronze has them."
    return Table(title, SMALL_BATCHES, rows, note)


def _snapshots(options: Options) -> Table:
    """Write a snapshot of a collection on MongoDB's own servers into the tables of a job."""
    documents, rows = options.scaled(DOCUMENTS, DOCUMENTS // 10), []
    with start_real_cluster(SNAPSHOT_SHARDS) as cluster:
        shard_evenly(cluster)
        fill(cluster, documents, lambda _: {"pad": "x" * (SIZE - 50)})
        with serve(cluster.configdb, "--upstream", cluster.mongos_uri) as (port, _):
            for tables in TABLES:
                for form in ("raw", "json"):
                    uri = f"mongodb://127.0.0.1:{port}"
                    wanted = flags(uri=uri, form=form, events=documents, tables=tables)
                    figures = run_json("-m", "bench.spark_reads", "snapshot", *wanted)
                    rows.append({"form": form, "into": ", ".join(tables), **figures})
                    say_row(SNAPSHOTS, rows[-1])
    title = f"A snapshot of {documents:,} documents of {SIZE} bytes"
    note = (
        "MongoDB's own servers, two shards. The third snapshot in one JVM, from the first batch to "
        "the last; CPU of the JVM and its workers."
    )
    return Table(title, SNAPSHOTS, rows, note)
