"""Throughput and CPU of the merge against a direct drain and an application-level merge."""

from collections.abc import Callable
from statistics import median
from typing import Any

from bench.events import FIRST_SECOND
from bench.processes import ReplayedCluster, cpu_seconds, replayed_cluster, router, run_json
from bench.suite import Column, Options, Outcome, Plot, Suite, Table

START = f"{FIRST_SECOND}:1"
SIZES = {600: 240_000, 2048: 120_000}
"""Bytes of an event, and how many are merged a run."""

COLUMNS = (
    Column("shards", "shards"),
    Column("event bytes", "size"),
    Column("router events/s", "router_rate", ",.0f"),
    Column("router CPU µs/event", "router_cpu", ".2f"),
    Column("direct drain events/s", "direct_rate", ",.0f"),
    Column("pymongo + heapq events/s", "application_rate", ",.0f"),
    Column("its CPU µs/event", "application_cpu", ".1f"),
    Column("router / heapq", "over_application", ".1f"),
)


def run(options: Options) -> Outcome:
    """Measure over numbers of shards and sizes of events."""
    shards = (1, 4) if options.quick else (1, 2, 4, 8, 16)
    rows = []
    for size, events in SIZES.items():
        for count in shards:
            options.say(f"{count} shards, {size}-byte events")
            rows.append(measure(count, size, options.scaled(events, events // 4), options.runs))
    plots = [
        Plot(
            name=f"throughput_{size}",
            title=f"Merged change streams, {size}-byte events",
            x="shards",
            y="events/s",
            series={
                label: [(row["shards"], row[key]) for row in rows if row["size"] == size]
                for label, key in (
                    ("router", "router_rate"),
                    ("shards drained directly", "direct_rate"),
                    ("pymongo + heapq", "application_rate"),
                )
            },
            log_x=True,
        )
        for size in SIZES
    ]
    return Outcome([Table("change streams merged (medians)", COLUMNS, rows)], plots)


SUITE = Suite("throughput", "Does throughput grow with the shards?", run)


def measure(shards: int, size: int, events: int, runs: int) -> dict[str, Any]:
    """Measure all three ways on the same replaying shards; medians over ``runs``.

    Args:
        shards: number of replaying shards.
        size: bytes of an event.
        events: events a run, over all shards.
        runs: runs each way.
    """
    with replayed_cluster(shards, events, size) as cluster:
        direct = _median(runs, lambda: _drain(cluster.ports, cluster.events))
        merged = _median(runs, lambda: _through_router(cluster))
        application = _median(1, lambda: _application(cluster.ports, cluster.events))
    return {
        "shards": shards,
        "size": size,
        "router_rate": merged["rate"],
        "router_cpu": merged["cpu"],
        "direct_rate": direct["rate"],
        "application_rate": application["rate"],
        "application_cpu": application["cpu"],
        "over_application": merged["rate"] / application["rate"],
    }


def _median(runs: int, run: Callable[[], dict[str, float]]) -> dict[str, float]:
    results = [run() for _ in range(runs)]
    return {name: median(result[name] for result in results) for name in results[0]}


def _drain(ports: list[str], events: int) -> dict[str, float]:
    result = run_json("-m", "bench.drain", *ports, "--events", str(events), "--start", START)
    return {"rate": result["events"] / result["seconds"]}


def _through_router(cluster: ReplayedCluster) -> dict[str, float]:
    with router(cluster.configdb) as (port, pid):
        before = cpu_seconds(pid)
        result = _drain([str(port)], cluster.events)
        used = cpu_seconds(pid) - before
    return {**result, "cpu": used / cluster.events * 1e6}


def _application(ports: list[str], events: int) -> dict[str, float]:
    arguments = ("--events", str(events), "--start", START)
    result = run_json("-m", "bench.application_merge", *ports, *arguments)
    return {
        "rate": result["events"] / result["seconds"],
        "cpu": result["cpu"] / result["events"] * 1e6,
    }
