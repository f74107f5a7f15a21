"""Throughput over shards as fast as mongod's: does the router keep them all busy?"""

from typing import Any

from bench.processes import drain, medians, own_core, replayed_cluster
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.throughput import START, through_router

PACE = 140_000
"""Events a second of one real shard, drained directly (docs/protocol.md#figures-from-elsewhere)."""
SIZE = 600
SECONDS = 2
"""How long a shard takes to deliver its events, in seconds."""
SHARDS = (1, 2, 4, 8, 16)

COLUMNS = (
    Column("shards", "shards"),
    Column("direct drain events/s", "direct_rate", ",.0f"),
    Column("router events/s", "router_rate", ",.0f"),
    Column("router / direct", "of_direct", ".2f"),
    Column("router CPU µs/event", "router_cpu", ".2f"),
)
NOTE = (
    f"Each shard takes {1e6 / PACE:.1f} µs an event for its replies, and works only while it is "
    "asked, as mongod does."
)


def run(options: Options) -> Outcome:
    """Measure each number of shards in SHARDS."""
    rows = []
    for shards in (4,) if options.quick else SHARDS:
        options.say(f"{shards} shards at a real one's pace")
        rows.append(_measure(shards, options.runs))
    title = f"shards of {PACE:,} events a second each, {SIZE}-byte events (medians)"
    series = {
        label: [(row["shards"], row[key]) for row in rows]
        for label, key in (("router", "router_rate"), ("shards drained directly", "direct_rate"))
    }
    plot = Plot("scaling", "Merged change streams, paced shards", "shards", "events/s", series)
    return Outcome([Table(title, COLUMNS, rows, NOTE)], [plot])


SUITE = Suite("scaling", "Does throughput grow with shards as fast as mongod's?", run)


def _measure(shards: int, runs: int) -> dict[str, Any]:
    events = PACE * SECONDS * shards
    paced = replayed_cluster(shards, events, SIZE, "--pace", str(PACE))
    with own_core() as core, paced as cluster:
        direct = medians([drain(cluster.ports, events, START) for _ in range(runs)])
        merged = medians([through_router(cluster, core) for _ in range(runs)])
    return {
        "shards": shards,
        "direct_rate": direct["rate"],
        "router_rate": merged["rate"],
        "router_cpu": merged["cpu"],
        "of_direct": merged["rate"] / direct["rate"],
    }
