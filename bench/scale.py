"""Many shards and many watchers on one router: the claims of docs/scaling.md."""

import time
from statistics import median
from typing import Any

from pymongo import MongoClient

from bench.fanout import opened_clients
from bench.processes import (
    ReplayedCluster,
    cpu_seconds,
    open_cursors,
    peak_memory,
    replayed_cluster,
    resident_memory,
    router,
)
from bench.program import results_of
from bench.suite import Column, Options, Outcome, Suite, Table

SIZE = 500
RUNS = ((4, 1, 400_000), (100, 1, 400_000), (4, 10_000, 800), (100, 10_000, 800))
"""Shards, watchers of one cluster stream, and the events that each of them reads."""

_LIMITS = ("maxCursors", "maxCursorsPerClient", "maxConnectionsPerClient")
_ENOUGH = 20_000
_MIB = 1024 * 1024

COLUMNS = (
    Column("shards", "shards"),
    Column("watchers", "watchers"),
    Column("events each", "events"),
    Column("opening all, s", "opening", ",.1f"),
    Column("delivered events/s", "rate", ",.0f"),
    Column("router CPU µs/event and watcher", "cpu", ".2f"),
    Column("cursors on shards and config server", "cursors"),
    Column("connections to members", "connections"),
    Column("router MiB before", "before", ",.0f"),
    Column("idle watchers", "idle", ",.0f"),
    Column("KiB a watcher, idle", "each", ",.1f"),
    Column("busy, at most", "busy", ",.0f"),
)
NOTE = (
    f"Replaying shards in one process, {SIZE}-byte events; the watchers open one cluster stream, "
    "then drain it together, in 2 processes on the same processors."
)


def run(options: Options) -> Outcome:
    """Measure each of RUNS; a quick run has a tenth of the shards, watchers and events."""
    rows = []
    for shards, watchers, events in RUNS:
        if options.quick:
            shards, watchers, events = (max(4, shards // 10), max(1, watchers // 10), events // 10)
        options.say(f"{watchers} watchers, {shards} shards")
        with replayed_cluster(shards, events, SIZE) as cluster:
            taken = [_measure(cluster, shards, watchers) for _ in range(options.runs)]
        rows.append({name: median(each[name] for each in taken) for name in taken[0]})
    return Outcome([Table("one router at its limits (medians)", COLUMNS, rows, NOTE)], [])


SUITE = Suite("scale", "What do 100 shards and 10,000 watchers cost one router?", run)


def _measure(cluster: ReplayedCluster, shards: int, watchers: int) -> dict[str, Any]:
    limits = [f"--setParameter={name}={_ENOUGH}" for name in _LIMITS]
    with router(cluster.configdb, *limits) as (port, pid):
        before = resident_memory(pid)
        begun = time.perf_counter()
        with opened_clients(port, watchers, cluster.events) as processes:
            opening = time.perf_counter() - begun
            idle = resident_memory(pid)
            cursors = sum(open_cursors(each) for each in cluster.all_ports)
            connections = _connections(port)
            used = cpu_seconds(pid)
            results = results_of(processes)
            used = cpu_seconds(pid) - used
            busy = peak_memory(pid)
    delivered = watchers * cluster.events
    assert sum(each["events"] for each in results) == delivered
    return {
        "shards": shards,
        "watchers": watchers,
        "events": cluster.events,
        "opening": opening,
        "rate": delivered / max(each["seconds"] for each in results),
        "cpu": used / delivered * 1e6,
        "cursors": cursors,
        "connections": connections,
        "before": before / _MIB,
        "idle": idle / _MIB,
        "each": (idle - before) / watchers / 1024,
        "busy": busy / _MIB,
    }


def _connections(port: int) -> int:
    """Return the number of the router's connections to all members."""
    client: MongoClient[dict[str, Any]]
    with MongoClient("127.0.0.1", port, directConnection=True) as client:
        members = client.admin.command("serverStatus")["mergerouter"]["memberConnections"]
    return sum(each["inUse"] + each["available"] for each in members.values())
