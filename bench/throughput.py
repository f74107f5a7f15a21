"""Throughput and CPU of the merge against a direct drain and an application-level merge."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from bench.events import FIRST_SECOND
from bench.processes import ReplayedCluster, cpu_seconds, replayed_cluster, router, run_json

START = f"{FIRST_SECOND}:1"


@dataclass(frozen=True, slots=True)
class Row:
    """One number of shards: events per second three ways, and microseconds of CPU per event."""

    shards: int
    size: int
    router_rate: float
    router_cpu: float
    direct_rate: float
    application_rate: float
    application_cpu: float

    @property
    def over_application(self) -> float:
        """How many times the application-level merge's throughput the router reaches."""
        return self.router_rate / self.application_rate


def measure(shards: int, size: int, events: int, runs: int) -> Row:
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
    return Row(
        shards=shards,
        size=size,
        router_rate=merged["rate"],
        router_cpu=merged["cpu"],
        direct_rate=direct["rate"],
        application_rate=application["rate"],
        application_cpu=application["cpu"],
    )


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    """Return the raw figures."""
    return [asdict(row) for row in rows]


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
