"""Throughput and CPU of the merge over replaying shards: many shards, paced ones, small batches."""

from typing import Any

from bench.drain import drain
from bench.events import FIRST_SECOND
from bench.kernel import reserved_core
from bench.programs import serve
from bench.replaying_cluster import ReplayedCluster, replayed_cluster
from bench.suite import Column, Options, Table, medians

START = f"{FIRST_SECOND}:1"
SIZES = {600: (1_920_000, (1, 2, 4, 8, 16)), 2048: (640_000, (1, 4, 16))}
"""Bytes of an event: the number of events per run, and the numbers of shards."""
PACE = 140_000
"""Events a second of one real shard, drained directly."""
PACED_SECONDS, PACED_SHARDS = 2, (1, 2, 4, 8, 16)
SHARDS, SIZE = 4, 600
BATCHES = {1: 20_000, 10: 100_000, 100: 240_000, 1000: 240_000}
"""Events per batch, on one side of the router, and how many events are read in all."""

MERGED = (
    Column("shards", "shards"),
    Column("event bytes", "size"),
    Column("router events/s", "router_rate", ",.0f"),
    Column("router CPU µs/event", "router_cpu", ".2f"),
    Column("opening ms", "router_opening", ".0f"),
    Column("direct drain events/s", "direct_rate", ",.0f"),
    Column("router / direct", "of_direct", ".2f"),
)
PACED_NOTE = (
    f"Each shard takes {1e6 / PACE:.1f} µs an event for its replies, and works only while it is "
    "asked, as mongod does."
)
SMALL = (
    Column("a shard's replies have", "most", ","),
    Column("the client asks for", "batch_size", ","),
    Column("events/s", "rate", ",.0f"),
    Column("router CPU µs/event", "cpu", ",.1f"),
)


def run(options: Options) -> list[Table]:
    """Measure shards that are as fast as they can, paced ones, and sizes of batches."""
    merged = [
        _merged(options, shards, size, options.scaled(events, events // 4))
        for size, (events, numbers) in SIZES.items()
        for shards in ((4,) if options.quick else numbers)
    ]
    paced = [
        _merged(options, shards, SIZE, PACE * PACED_SECONDS * shards, "--pace", str(PACE))
        for shards in ((4,) if options.quick else PACED_SHARDS)
    ]
    small = [
        _small_batches(options, options.scaled(events, events // 5), most, batch_size)
        for few, events in BATCHES.items()
        for most, batch_size in ((None, few), (few, None))
    ]
    title = f"{SHARDS} shards, {SIZE}-byte events, one client (medians)"
    return [
        Table("change streams merged (medians)", MERGED, merged),
        Table(f"shards of {PACE:,} events a second each (medians)", MERGED, paced, PACED_NOTE),
        Table(title, SMALL, small),
    ]


def _merged(
    options: Options, shards: int, size: int, events: int, *arguments: str
) -> dict[str, Any]:
    """Drain the same shards directly and through the router; return a row of medians."""
    print(f"{shards} shards, {size}-byte events {' '.join(arguments)}")
    with reserved_core() as core, replayed_cluster(shards, events, size, *arguments) as cluster:
        times = range(options.runs)
        direct = medians([drain(cluster.ports, cluster.events, START) for _ in times])
        merged = medians([_through_router(cluster, core) for _ in times])
    figures = {f"router_{name}": value for name, value in merged.items()}
    figures |= {"direct_rate": direct["rate"], "of_direct": merged["rate"] / direct["rate"]}
    return {"shards": shards, "size": size, **figures}


def _small_batches(
    options: Options, events: int, most: int | None, batch_size: int | None
) -> dict[str, Any]:
    """Drain few events at a time, from each shard or to the client; return a row of medians."""
    print(f"{most or batch_size} events at a time, {'from each shard' if most else 'out'}")
    limit = ("--most", str(most)) if most else ()
    asked = ("--batch-size", str(batch_size)) if batch_size else ()
    with replayed_cluster(SHARDS, events, SIZE, *limit) as cluster:
        runs = [_through_router(cluster, None, *asked) for _ in range(options.runs)]
    return {"most": most, "batch_size": batch_size, **medians(runs)}


def _through_router(
    cluster: ReplayedCluster, cores: set[int] | None, *arguments: str
) -> dict[str, float]:
    """Drain the whole cluster through a new router that runs on ``cores`` only."""
    with serve(cluster.configdb, cores=cores) as (port, pid):
        return drain([str(port)], cluster.events, START, *arguments, cpu_of={"cpu": [pid]})
