"""Workers: independent streams through one process and through two, and the cost of crossing."""

from typing import Any

from bench.processes import (
    ReplayedCluster,
    children,
    cpu_seconds,
    medians,
    replayed_cluster,
    router,
    run_json,
)
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.throughput import START

SHARDS = 2
SIZE = 600
STREAMS = ((1, None), (2, None), (4, None), (4, 1))
"""The number of streams, and the events that clients ask for at a time (None: no limit)."""
EVENTS = 240_000
"""Events that each stream delivers."""
_FEWER_ONE_BY_ONE = 24

COLUMNS = (
    Column("workers", "workers"),
    Column("streams", "streams"),
    Column("events a getMore", "batch", ","),
    Column("events/s", "rate", ",.0f"),
    Column("to one worker", "ratio", ".2f"),
    Column("router CPU µs/event", "cpu", ".2f"),
    Column("cores used by the router", "cores", ".2f"),
    Column("busiest worker's share", "busiest", ".0%"),
)
CROSSED_COLUMNS = (
    Column("getMores arrive at", "where"),
    Column("events a getMore", "batch", ","),
    Column("events/s", "rate", ",.0f"),
    Column("router CPU µs/event", "cpu", ".2f"),
)
_NOTE = (
    "Replaying shards and the clients that drain run on the same cores: where the machine has no "
    "core to spare, more workers cannot deliver more; the CPU per event shows what they cost."
)


def run(options: Options) -> Outcome:
    """Compare 1 worker with 2 over numbers of streams; then measure requests that are passed on."""
    events = options.scaled(EVENTS, EVENTS // 6)
    rows: list[dict[str, Any]] = []
    with replayed_cluster(SHARDS, events, SIZE) as cluster:
        for streams, batch in STREAMS:
            # Alternate, so that changes in the machine's load affect both alike.
            taken: dict[int, list[dict[str, float]]] = {1: [], 2: []}
            for _ in range(options.runs):
                for workers, found in taken.items():
                    options.say(f"{streams} streams, {workers} workers")
                    found.append(measure(cluster, workers, streams, batch))
            by_workers = {workers: medians(found) for workers, found in taken.items()}
            for workers, row in by_workers.items():
                ratio = row["rate"] / by_workers[1]["rate"]
                what = {"workers": workers, "streams": streams, "batch": batch}
                rows.append({**what, **row, "ratio": ratio})
        crossed = _measure_crossed(cluster, options)
    plot = Plot(
        name="workers",
        title=f"Independent streams, {SHARDS} shards, {SIZE}-byte events",
        x="streams",
        y="events/s",
        series={
            f"{workers} workers": [
                (row["streams"], row["rate"])
                for row in rows
                if row["workers"] == workers and row["batch"] is None
            ]
            for workers in (1, 2)
        },
    )
    title = f"independent streams of {SHARDS} shards, {SIZE}-byte events (medians)"
    crossed_title = "one stream, 2 workers, read at its own worker and at the other one (medians)"
    return Outcome(
        [Table(title, COLUMNS, rows, _NOTE), Table(crossed_title, CROSSED_COLUMNS, crossed)],
        [plot],
    )


SUITE = Suite("workers", "What do more workers give?", run)


def measure(
    cluster: ReplayedCluster, workers: int, streams: int, batch: int | None, *arguments: str
) -> dict[str, float]:
    """Drain ``streams`` streams at once through a new router with ``workers`` workers.

    ``batch`` is the batch size of the clients, None for no limit. Returns events a second, the
    router's CPU µs per event, the cores it used, and the busiest worker's share of them.
    """
    wanted = streams * (cluster.events // _FEWER_ONE_BY_ONE if batch == 1 else cluster.events)
    with router(cluster.configdb, "--workers", str(workers)) as (port, pid):
        processes = children(pid) or [pid]
        before = {each: cpu_seconds(each) for each in processes}
        result = run_json(
            "-m", "bench.drain", *[str(port)] * streams, "--start", START, "--distinct",
            "--events", str(wanted), "--batch-size", str(batch or 0), *arguments,
        )  # fmt: skip
        used = [cpu_seconds(each) - before[each] for each in processes]
    return {
        "rate": result["events"] / result["seconds"],
        "cpu": sum(used) / result["events"] * 1e6,
        "cores": sum(used) / result["seconds"],
        "busiest": max(used) / sum(used),
    }


def _measure_crossed(cluster: ReplayedCluster, options: Options) -> list[dict[str, Any]]:
    rows = []
    for batch in (None, 1):
        for where, arguments in (("its worker", ()), ("the other", ("--second-connection",))):
            options.say(f"a stream read at {where}")
            found = [measure(cluster, 2, 1, batch, *arguments) for _ in range(options.runs)]
            rows.append({"where": where, "batch": batch, **medians(found)})
    return rows
