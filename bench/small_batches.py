"""Small batches: the router's cost per event when events come or go a few at a time."""

from typing import Any

from bench.processes import ReplayedCluster, drain, medians, replayed_cluster, router
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.throughput import START

SHARDS = 4
SIZE = 600
BATCHES = {1: 20_000, 10: 100_000, 100: 240_000, 1000: 240_000}
"""Events per batch, on one side of the router, and how many events are read in all."""

COLUMNS = (
    Column("a shard's replies have", "most", ","),
    Column("the client asks for", "batch_size", ","),
    Column("events/s", "rate", ",.0f"),
    Column("router CPU µs/event", "cpu", ",.1f"),
)


def run(options: Options) -> Outcome:
    """Measure each batch size in BATCHES, once on the shards' side and once on the client's."""
    rows = []
    for few, events in BATCHES.items():
        for most, batch_size in ((None, few), (few, None)):
            options.say(f"{few} events at a time, {'from each shard' if most else 'to the client'}")
            limit = ("--most", str(most)) if most else ()
            count = options.scaled(events, events // 5)
            with replayed_cluster(SHARDS, count, SIZE, *limit) as cluster:
                runs = [measure(cluster, batch_size or 0) for _ in range(options.runs)]
            row: dict[str, Any] = {"few": few, "most": most, "batch_size": batch_size}
            rows.append({**row, **medians(runs)})
    table = Table(f"{SHARDS} shards, {SIZE}-byte events, one client (medians)", COLUMNS, rows)
    plot = Plot(
        name="small_batches",
        title="CPU of the router by batch size",
        x="events at a time",
        y="µs of CPU per event",
        series={
            "from a shard": [(row["few"], row["cpu"]) for row in rows if row["most"]],
            "to the client": [(row["few"], row["cpu"]) for row in rows if row["batch_size"]],
        },
        log_x=True,
        log_y=True,
    )
    return Outcome([table], [plot])


SUITE = Suite("small_batches", "What do small batches cost?", run)


def measure(cluster: ReplayedCluster, batch_size: int) -> dict[str, float]:
    """Drain the cluster once through a new router; return the figures of ``drain``."""
    with router(cluster.configdb) as (port, pid):
        batch = ("--batch-size", str(batch_size))
        return drain([str(port)], cluster.events, START, *batch, cpu_of=pid)
