"""Latency: from a write's acknowledgement to the arrival of its event through watch()."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from pymongo import MongoClient

from bench.processes import cpu_seconds
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.watched_writes import (
    COLLECTION,
    DATABASE,
    Watcher,
    busy_shards,
    note_round_trips,
    spread,
    uneven,
    write_paced,
)
from tests.harness.clusters import TestCluster, start_cluster
from tests.harness.routers import RouterProcess, start_router

SHARDS = 4
BUSY_RATES = (10, 50)
"""Writes a second on each shard while the shards are busy."""

COLUMNS = (
    Column("the cluster", "cluster"),
    Column("watched through", "through"),
    Column("writes", "writes"),
    Column("p50 ms", "p50", ".1f"),
    Column("p90 ms", "p90", ".1f"),
    Column("p99 ms", "p99", ".1f"),
    Column("most ms", "most", ".1f"),
    Column("no-op writes/event", "noops", ".1f"),
    Column("router CPU ms/event", "cpu_ms", ".2f"),
)
NOTE = (
    "From acknowledgement to arrival. A member's no-op interval is the default of 10 s. What a "
    "direct stream of the written shard takes is the cluster's and the driver's share; a note is "
    "one appendOplogNote with majority write concern, which each nudge takes at least."
)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to watch: its name, its URI and its router, if it has one."""

    name: str
    uri: str
    router: RouterProcess | None = None


def run(options: Options) -> Outcome:
    """Measure an idle, a quiet and a busy cluster, directly and through the router."""
    with start_cluster(SHARDS) as cluster:
        spread(cluster)
        with start_router(cluster.configdb, upstream=f"mongodb://{cluster.mongos}/") as router:
            ways = [Way("one shard directly", _direct(cluster, "shard0"))]
            ways.append(Way("router", router.uri, router))
            if cluster.real:
                ways.append(Way("mongos", cluster.mongos_uri))
            rows = [*_notes(cluster), *_states(cluster, ways, options)]
    title = f"{SHARDS} shards, {'real servers' if cluster.real else 'embedded cluster'}"
    return Outcome([Table(title, COLUMNS, rows, NOTE)], [_plot(rows, ways)])


SUITE = Suite("latency", "How late does an event come while other members are idle?", run)


def _notes(cluster: TestCluster) -> list[dict[str, Any]]:
    """Measure the round trip of a note, without the router, to a shard and to the config server."""
    rows = []
    for member in ("shard1", "config"):
        took = note_round_trips(_direct(cluster, member), 50)
        rows.append({"cluster": "idle", "through": f"a note to {member}", **_spread_of(took)})
    return rows


def _states(cluster: TestCluster, ways: list[Way], options: Options) -> Iterator[dict[str, Any]]:
    count, first = options.scaled(150, 30), 0
    quiet = [options.quiet] * (options.scaled(4, 1) if options.quiet <= 10 else 1)
    for state, pauses, rate in (
        ("other members idle", uneven(count, 0.2), 0),
        (f"quiet for {options.quiet:g} s before", quiet, 0),
        *((f"{rate} writes/s on each shard", uneven(count, 0.1), rate) for rate in BUSY_RATES),
    ):
        for way in ways:
            options.say(f"{state}: {way.name}")
            with busy_shards(cluster, rate) if rate else nullcontext():
                figures = measure(cluster, way, first, pauses)
            first += len(pauses)
            yield {"cluster": state, "through": way.name, **figures}


def measure(cluster: TestCluster, way: Way, first: int, pauses: list[float]) -> dict[str, Any]:
    """Write one document after each pause and watch through ``way``.

    Args:
        cluster: the cluster to write to.
        way: the way to watch.
        first: the number of the first document.
        pauses: seconds to wait before each write.

    Returns latencies in milliseconds; through a router also its CPU milliseconds and no-op writes
    per event.
    """
    watcher = Watcher(way.uri)
    watcher.start()
    client: MongoClient[dict[str, Any]]
    pid = way.router.process.pid if way.router else 0
    noops, used = (_noops(way), cpu_seconds(pid)) if pid else (0, 0.0)
    with MongoClient(cluster.mongos_uri) as client:
        acknowledged = write_paced(client[DATABASE][COLLECTION], first, pauses)
        late = [watcher.wait_for(number) - at for number, at in acknowledged.items()]
    figures = _spread_of(late)
    if pid:
        figures["cpu_ms"] = (cpu_seconds(pid) - used) / watcher.events * 1e3
        figures["noops"] = (_noops(way) - noops) / watcher.events
    watcher.stop()
    return figures


def _direct(cluster: TestCluster, member: str) -> str:
    host = cluster.configdb if member == "config" else cluster.shards[member]
    return f"mongodb://{host.partition('/')[2]}/?directConnection=true"


def _spread_of(seconds: list[float]) -> dict[str, Any]:
    shares = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else seconds * 99
    chosen = {"p50": shares[49], "p90": shares[89], "p99": shares[98], "most": max(seconds)}
    return {"writes": len(seconds), **{name: value * 1e3 for name, value in chosen.items()}}


def _noops(way: Way) -> int:
    client: MongoClient[dict[str, Any]]
    with MongoClient(way.uri) as client:
        status = client.admin.command("serverStatus")
    return sum(status["mergerouter"]["noopCommands"].values())


def _plot(rows: list[dict[str, Any]], ways: list[Way]) -> Plot:
    series = {
        f"{way.name}, {share}": [
            (row["cluster"], row[share]) for row in rows if row["through"] == way.name
        ]
        for way in ways
        for share in ("p50", "p99")
    }
    title = "From acknowledgement to arrival"
    return Plot("latency", title, "state of the cluster", "ms", series, bars=True)
