"""Many streams that differ only in their filter: one scan of the oplogs, or one for each."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import quantiles
from typing import Any

from pymongo import MongoClient
from pymongo.collection import Collection

from bench.events import TENANTS
from bench.fanout import PROCESSES, opened_clients
from bench.members import Members
from bench.processes import (
    ReplayedCluster,
    cpu_seconds,
    listening,
    medians,
    open_cursors,
    replayed_cluster,
    resident_memory,
    router,
)
from bench.program import Program, results_of
from bench.suite import Column, Options, Outcome, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, spread
from tests.harness.clusters import RealCluster, ServerBinaries, TestCluster
from tests.harness.server_settings import ServerSettings

SHARDS, SIZE = 4, 600
STREAMS = (1, 10, 100, 1000)
EVENTS = 400_000

REAL_SHARDS = 2
WATCHERS = (1, 10, 20, 100, 300)
WRITES, BATCH = 8_000, 200
PACED_STREAMS, PACED_RATE, PACED_SECONDS = 1000, 2000, 10
NOTES = (20, 100)
"""Values of noopWritesPerSecond; the first is the default."""
OPLOG_MB = 8192
"""Notes alone must not fill an oplog within three days, or there are fewer of them."""

_LIMITS = ("maxStreams", "maxStreamsPerClient")
_ENOUGH = 1000
_PAUSE = 0.02
"""Seconds from one batch of paced writes to the next."""
_MICRO = 1e6

REPLAYED = (
    Column("streams", "streams"),
    Column("events/s in", "rate", ",.0f"),
    Column("matches/s", "matches", ",.0f"),
    Column("router CPU µs/event", "cpu", ".2f"),
    Column("matches a batch", "batch", ",.0f"),
    Column("cursors on shards and config server", "cursors", ",.0f"),
    Column("router KiB a stream, idle", "idle", ",.0f"),
    Column("after reading", "busy", ",.0f"),
)
REPLAYED_NOTE = (
    f"{SHARDS} replaying shards, {SIZE}-byte events of {TENANTS} tenants, shareFilters=always; "
    f"each stream has the filter of one tenant. The clients are {PROCESSES} processes on the same "
    "processors. With few streams most events match none."
)
REAL = (
    Column("watchers", "watchers"),
    Column("watched through", "way"),
    Column("shards' CPU µs/write", "shards", ",.0f"),
    Column("mongos's", "mongos", ",.0f"),
    Column("router's", "router", ",.0f"),
    Column("seconds", "seconds", ".1f"),
)
REAL_NOTE = (
    f"{REAL_SHARDS} shards, {WRITES} inserts in batches of {BATCH} through mongos, until every "
    "watcher has its events; each watches its own tenant of one collection. The CPU includes the "
    "writes; the shards' includes the config server's."
)
PACED = (
    Column("streams", "streams"),
    Column("writes/s", "rate", ",.0f"),
    Column("noopWritesPerSecond", "allowed"),
    Column("p50 ms", "p50", ",.1f"),
    Column("p99 ms", "p99", ",.1f"),
    Column("no-op writes/s, of a shard", "shard_notes", ".1f"),
    Column("no-op writes/s, of the config server", "config_notes", ".1f"),
    Column("router CPU µs/write", "cpu", ",.0f"),
)
PACED_NOTE = (
    f"{REAL_SHARDS} shards, shareFilters=always; from a write's acknowledgement by a majority to "
    "its arrival, where a batch of documents is written every 20 ms. The notes that the burst "
    "would allow after a quiet time are left out."
)


def run(options: Options) -> Outcome:
    """Measure replaying shards and, if MERGEROUTER_MONGO_BIN names their folder, real servers."""
    rows = []
    for streams in STREAMS:
        options.say(f"{streams} filters on one scope, replayed")
        events = options.scaled(EVENTS, EVENTS // 4)
        with replayed_cluster(SHARDS, events, SIZE) as cluster:
            taken = [_replay(cluster, streams) for _ in range(options.runs)]
            rows.append({"streams": streams, **medians(taken)})
    tables = [Table("filters on one scope (medians)", REPLAYED, rows, REPLAYED_NOTE)]
    if options.real_binaries is None:
        options.say("real servers are left out: set MERGEROUTER_MONGO_BIN to their folder")
        return Outcome(tables)
    settings = ServerSettings(noop_interval=1, oplog_mb=OPLOG_MB)
    binaries = ServerBinaries(options.real_binaries)
    with RealCluster(binaries, REAL_SHARDS, settings=settings) as cluster:
        spread(cluster)
        real = list(_real(cluster, options))
        paced = [_paced(cluster, options, allowed) for allowed in NOTES]
    tables.append(Table("filters on real servers (medians)", REAL, real, REAL_NOTE))
    tables.append(Table("filters on real servers, paced", PACED, paced, PACED_NOTE))
    return Outcome(tables)


SUITE = Suite("filters", "What do many streams with a filter each cost?", run)


# Replaying shards.


def _replay(cluster: ReplayedCluster, streams: int) -> dict[str, float]:
    each = cluster.events // TENANTS
    with router(cluster.configdb, "--setParameter", "shareFilters=always") as (port, pid):
        before = resident_memory(pid)
        with opened_clients(port, streams, each, tenants=True) as processes:
            idle = resident_memory(pid)
            cursors = sum(open_cursors(port) for port in cluster.all_ports)
            used, begun = cpu_seconds(pid), time.perf_counter()
            results = results_of(processes)
            used, took = cpu_seconds(pid) - used, time.perf_counter() - begun
            busy = resident_memory(pid)
    return {
        "rate": cluster.events / took,
        "matches": sum(result["events"] for result in results) / took,
        "cpu": used / cluster.events * _MICRO,
        "batch": streams * each / sum(result["batches"] for result in results),
        "cursors": cursors,
        "idle": (idle - before) / streams / 1024,
        "busy": (busy - before) / streams / 1024,
    }


# Real servers.


def _real(cluster: TestCluster, options: Options) -> Iterator[dict[str, Any]]:
    members = Members(cluster)
    mongos = int(cluster.mongos.rpartition(":")[2])
    pids = {"mongos": listening("mongos", mongos)}
    yield _row(cluster, members, "nobody", 0, 0, pids, options)
    for watchers in WATCHERS[:4] if options.quick else WATCHERS:
        options.say(f"{watchers} watchers with a filter each: mongos")
        yield _row(cluster, members, "mongos", mongos, watchers, pids, options)
        for mode in ("never", "auto"):
            options.say(f"{watchers} watchers with a filter each: router, shareFilters={mode}")
            parameters = (f"shareFilters={mode}", *(f"{name}={_ENOUGH}" for name in _LIMITS))
            arguments = [f"--setParameter={each}" for each in parameters]
            with router(cluster.configdb, f"--upstream={cluster.mongos_uri}", *arguments) as (
                port,
                pid,
            ):
                name, all_pids = f"router, {mode}", {**pids, "router": pid}
                yield _row(cluster, members, name, port, watchers, all_pids, options)
    members.close()


def _row(
    cluster: TestCluster,
    members: Members,
    way: str,
    port: int,
    watchers: int,
    pids: dict[str, int],
    options: Options,
) -> dict[str, Any]:
    taken = [_once(cluster, members, port, watchers, pids) for _ in range(options.runs)]
    return {"watchers": watchers, "way": way, **medians(taken)}


def _once(
    cluster: TestCluster, members: Members, port: int, watchers: int, pids: dict[str, int]
) -> dict[str, float]:
    """Write once, watched by ``watchers`` streams through ``port``; return the costs."""
    write = partial(_write, cluster, max(1, watchers))
    if not watchers:
        return members.cost_of_writes(write, WRITES, pids)
    with _watching(port, watchers, "--expect", str(WRITES)) as process:
        return members.cost_of_writes(write, WRITES, pids, process)


def _write(cluster: TestCluster, tenants: int) -> None:
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        documents = client[DATABASE][COLLECTION]
        for first in range(0, WRITES, BATCH):
            documents.insert_many(
                [_document(number, tenants) for number in range(first, first + BATCH)],
                ordered=False,
            )


def _document(number: int, tenants: int) -> dict[str, Any]:
    return {"s": number % REAL_SHARDS, "tenant": number % tenants, "pad": "x" * 300}


def _paced(cluster: TestCluster, options: Options, allowed: int) -> dict[str, Any]:
    """Write batches at a steady rate; return the latency of their events.

    ``allowed`` is the number of no-op writes that the router may write to a member each second.
    """
    options.say(f"{PACED_STREAMS} watchers, {PACED_RATE} writes/s, {allowed} notes/s allowed")
    seconds = 3 if options.quick else PACED_SECONDS
    each = round(PACED_RATE * _PAUSE)
    steps = round(seconds / _PAUSE)
    arguments = ["shareFilters=always", f"noopWritesPerSecond={allowed}"]
    # Without a burst the rate is what it is after minutes of such a load.
    arguments.append("noopWriteBurst=1")
    parameters = [f"--setParameter={argument}" for argument in arguments]
    with (
        router(cluster.configdb, f"--upstream={cluster.mongos_uri}", *parameters) as (port, pid),
        MongoClient[dict[str, Any]](cluster.mongos_uri, w="majority") as client,
        MongoClient[dict[str, Any]]("127.0.0.1", port) as status,
        _watching(port, PACED_STREAMS, "--all-arrivals", "--expect", str(steps * each)) as process,
    ):
        documents = client[DATABASE][COLLECTION]
        notes, used, begun = _notes(status), cpu_seconds(pid), time.perf_counter()
        acknowledged = _write_paced(documents, steps, each)
        took = time.perf_counter() - begun
        process.line()
        used = cpu_seconds(pid) - used
        notes = {name: count - notes.get(name, 0) for name, count in _notes(status).items()}
        process.tell()
        arrived = json.loads(process.line())["arrived"]
        documents.delete_many({"_id": {"$in": list(acknowledged)}})
    late = [max(0.0, arrived[name] - at) * 1e3 for name, at in acknowledged.items()]
    cuts = quantiles(late, n=100)
    config_notes = notes.pop("config", 0)
    return {
        "streams": PACED_STREAMS,
        "rate": len(late) / took,
        "allowed": allowed,
        "p50": cuts[49],
        "p99": cuts[98],
        "shard_notes": sum(notes.values()) / REAL_SHARDS / took,
        "config_notes": config_notes / took,
        "cpu": used / len(late) * _MICRO,
    }


def _write_paced(documents: Collection[dict[str, Any]], steps: int, each: int) -> dict[str, float]:
    """Write batches of ``each`` documents; return when each document was acknowledged."""
    acknowledged: dict[str, float] = {}
    begun = time.perf_counter()
    for step in range(steps):
        time.sleep(max(0.0, begun + step * _PAUSE - time.perf_counter()))
        made = [
            {**_document(number, PACED_STREAMS), "_id": f"paced-{number}"}
            for number in range(step * each, (step + 1) * each)
        ]
        documents.insert_many(made, ordered=False)
        now = time.perf_counter()
        acknowledged.update((document["_id"], now) for document in made)
    return acknowledged


def _notes(client: MongoClient[dict[str, Any]]) -> dict[str, int]:
    """Return the no-op writes that the router has written so far, by member."""
    notes: dict[str, int] = client.admin.command("serverStatus")["mergerouter"]["noopCommands"]
    return notes


@contextmanager
def _watching(port: int, watchers: int, *arguments: str) -> Iterator[Program]:
    """Run watchers of one tenant each during the block, from when all are open."""
    options = ["--clients", str(watchers), "--watch", "tenant", *arguments]
    with Program("bench.live_watchers", str(port), *options) as process:
        process.line()
        yield process
