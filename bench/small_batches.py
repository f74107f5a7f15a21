"""Small batches: what an event costs the router when its client takes a few at a time."""

from statistics import median
from typing import Any

from bench.processes import ReplayedCluster, cpu_seconds, replayed_cluster, router, run_json
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.throughput import START

SHARDS = 4
SIZE = 600
BATCHES = {1: 20_000, 10: 100_000, 100: 240_000, 1000: 240_000}
"""Events that a client asks for at a time, and how many it reads in all."""

COLUMNS = (
    Column("events asked for at a time", "batch_size", ","),
    Column("events/s", "rate", ",.0f"),
    Column("router CPU µs/event", "cpu", ",.1f"),
    Column("router CPU µs/reply", "cpu_a_reply", ",.0f"),
)


def run(options: Options) -> Outcome:
    """Measure over batch sizes."""
    rows = []
    for batch_size, events in BATCHES.items():
        options.say(f"{batch_size} events at a time")
        count = options.scaled(events, events // 5)
        with replayed_cluster(SHARDS, count, SIZE) as cluster:
            runs = [measure(cluster, batch_size) for _ in range(options.runs)]
        row: dict[str, Any] = {key: median(each[key] for each in runs) for key in runs[0]}
        rows.append({"batch_size": batch_size, **row, "cpu_a_reply": row["cpu"] * batch_size})
    table = Table(f"{SHARDS} shards, {SIZE}-byte events, one client (medians)", COLUMNS, rows)
    plot = Plot(
        name="small_batches",
        title="CPU of the router by batch size",
        x="events asked for at a time",
        y="µs of CPU per event",
        series={"router": [(row["batch_size"], row["cpu"]) for row in rows]},
        log_x=True,
        log_y=True,
    )
    return Outcome([table], [plot])


SUITE = Suite("small_batches", "What do small batches cost?", run)


def measure(cluster: ReplayedCluster, batch_size: int) -> dict[str, float]:
    """Drain the cluster once through a router of its own."""
    with router(cluster.configdb) as (port, pid):
        before = cpu_seconds(pid)
        wanted = ("--events", str(cluster.events), "--batch-size", str(batch_size))
        result = run_json("-m", "bench.drain", str(port), "--start", START, *wanted)
        used = cpu_seconds(pid) - before
    return {
        "rate": result["events"] / result["seconds"],
        "cpu": used / result["events"] * 1e6,
    }
