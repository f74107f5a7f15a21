"""Throughput and CPU of the merge against a direct drain and an application-level merge."""

from collections.abc import Callable
from typing import Any

from bench.events import FIRST_SECOND
from bench.flame import profiled
from bench.processes import (
    ReplayedCluster,
    drain,
    medians,
    own_core,
    replayed_cluster,
    router,
    run_json,
)
from bench.suite import Column, Options, Outcome, Plot, Suite, Table

START = f"{FIRST_SECOND}:1"
SIZES = {600: (1_920_000, (1, 2, 4, 8, 16)), 2048: (640_000, (1, 4, 16))}
"""Bytes of an event: the number of events per run, and the numbers of shards."""
APPLICATION_EVENTS = 100_000
"""The events of the application-level merge; fewer, because it takes ten times as long."""

COLUMNS = (
    Column("shards", "shards"),
    Column("event bytes", "size"),
    Column("router events/s", "router_rate", ",.0f"),
    Column("router CPU µs/event", "router_cpu", ".2f"),
    Column("opening ms", "opening", ".0f"),
    Column("direct drain events/s", "direct_rate", ",.0f"),
    Column("pymongo + heapq events/s", "application_rate", ",.0f"),
    Column("its CPU µs/event", "application_cpu", ".1f"),
    Column("router / heapq", "over_application", ".1f"),
)


def run(options: Options) -> Outcome:
    """Measure each size of events over numbers of shards."""
    rows = []
    for size, (events, numbers) in SIZES.items():
        for count in (4,) if options.quick else numbers:
            options.say(f"{count} shards, {size}-byte events")
            rows.append(measure(count, size, options.scaled(events, events // 4), options.runs))
    if options.profile is not None:
        _profile(options)
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


SUITE = Suite("throughput", "How much can one router merge?", run)


def _profile(options: Options) -> None:
    """Take a flame graph for each size at four shards, in separate runs."""
    assert options.profile is not None
    options.profile.mkdir(exist_ok=True)
    for size, (events, _) in SIZES.items():
        path = options.profile / f"flame_{size}.svg"
        with (
            replayed_cluster(4, events, size) as cluster,
            router(cluster.configdb) as (port, pid),
            profiled(pid, path),
        ):
            drain([str(port)], cluster.events, START)
        options.say(f"flame graph: {path}")


def measure(shards: int, size: int, events: int, runs: int) -> dict[str, Any]:
    """Measure all three ways on the same replaying shards; return a row of medians.

    Args:
        shards: number of replaying shards.
        size: bytes of an event.
        events: events per run, over all shards.
        runs: runs of each way.
    """
    with own_core() as core, replayed_cluster(shards, events, size) as cluster:
        direct = _median(runs, lambda: drain(cluster.ports, cluster.events, START))
        merged = _median(runs, lambda: through_router(cluster, core))
        some = min(cluster.events, APPLICATION_EVENTS)
        application = _median(1, lambda: _application(cluster.ports, some, core))
    return {
        "shards": shards,
        "size": size,
        "router_rate": merged["rate"],
        "router_cpu": merged["cpu"],
        "opening": merged["opening"],
        "direct_rate": direct["rate"],
        "application_rate": application["rate"],
        "application_cpu": application["cpu"],
        "over_application": merged["rate"] / application["rate"],
    }


def _median(runs: int, run: Callable[[], dict[str, float]]) -> dict[str, float]:
    return medians([run() for _ in range(runs)])


def through_router(cluster: ReplayedCluster, cores: set[int]) -> dict[str, float]:
    """Drain the whole cluster through a new router that runs on ``cores`` only."""
    with router(cluster.configdb, cores=cores) as (port, pid):
        return drain([str(port)], cluster.events, START, cpu_of=pid)


def _application(ports: list[str], events: int, cores: set[int]) -> dict[str, float]:
    arguments = ("--events", str(events), "--start", START)
    result = run_json("-m", "bench.application_merge", *ports, *arguments, cores=cores)
    return {
        "rate": result["events"] / result["seconds"],
        "cpu": result["cpu"] / result["events"] * 1e6,
    }
