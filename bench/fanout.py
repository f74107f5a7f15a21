"""Many clients of one stream: their cost to the router and the shards, in CPU and memory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from bench.events import FIRST_SECOND
from bench.processes import (
    ReplayedCluster,
    cpu_seconds,
    open_cursors,
    peak_memory,
    replayed_cluster,
    resident_memory,
    router,
)
from bench.program import Program, results_of
from bench.suite import Column, Options, Outcome, Plot, Suite, Table

SHARDS = 4
SIZE = 500
PROCESSES = 2
EVENTS = {1: 200_000, 10: 100_000, 100: 40_000, 1000: 4_000}
"""Numbers of clients, and the events that each client reads."""

COLUMNS = (
    Column("clients", "clients"),
    Column("events each", "events"),
    Column("delivered events/s", "rate", ",.0f"),
    Column("router CPU µs/event and client", "cpu", ".2f"),
    Column("events a batch", "batch", ",.0f"),
    Column("cursors on shards and config server", "cursors"),
    Column("router MiB before", "before", ",.0f"),
    Column("idle clients", "idle", ",.0f"),
    Column("busy, at most", "busy", ",.0f"),
)
NOTE = (
    f"{SHARDS} replaying shards, {SIZE}-byte events; the clients open one cluster stream, then "
    f"drain it together, in {PROCESSES} processes of their own on the same processors."
)
_MIB = 1024 * 1024


def run(options: Options) -> Outcome:
    """Measure each number of clients in EVENTS."""
    rows = []
    for clients, events in EVENTS.items():
        options.say(f"{clients} clients on one stream")
        events = options.scaled(events, events // 4)
        with replayed_cluster(SHARDS, events, SIZE) as cluster:
            taken = [_measure(cluster, clients) for _ in range(options.runs)]
        rows.append({name: median(each[name] for each in taken) for name in taken[0]})
    plot = Plot(
        name="fanout",
        title=f"Clients that share one stream, {SIZE}-byte events",
        x="clients",
        y="events/s delivered to all of them",
        series={"router": [(row["clients"], row["rate"]) for row in rows]},
        log_x=True,
    )
    return Outcome([Table("clients on one stream (medians)", COLUMNS, rows, NOTE)], [plot])


SUITE = Suite("fanout", "What do many watchers of one stream cost?", run)


def _measure(cluster: ReplayedCluster, clients: int) -> dict[str, Any]:
    with router(cluster.configdb) as (port, pid):
        before = resident_memory(pid)
        with opened_clients(port, clients, cluster.events) as processes:
            idle = resident_memory(pid)
            cursors = sum(open_cursors(each) for each in cluster.all_ports)
            used = cpu_seconds(pid)
            results = results_of(processes)
            used = cpu_seconds(pid) - used
            busy = peak_memory(pid)
    delivered = clients * cluster.events
    assert sum(each["events"] for each in results) == delivered
    return {
        "clients": clients,
        "events": cluster.events,
        "rate": delivered / max(each["seconds"] for each in results),
        "cpu": used / delivered * 1e6,
        "batch": delivered / sum(each["batches"] for each in results),
        "cursors": cursors,
        "before": before / _MIB,
        "idle": idle / _MIB,
        "busy": busy / _MIB,
    }


@contextmanager
def opened_clients(
    port: int, clients: int, events: int, *, tenants: bool = False
) -> Iterator[list[Program]]:
    """Start processes that open the clients' cursors and then wait for a line on stdin.

    Each client reads ``events`` events: the whole stream's, or those of a tenant of its own.
    """
    shares = [clients // PROCESSES + (n < clients % PROCESSES) for n in range(PROCESSES)]
    start = f"{FIRST_SECOND}:1"
    first = 0
    with ExitStack() as stack:
        processes = []
        for share in filter(None, shares):
            arguments = ["--clients", str(share), "--events", str(events), "--start", start]
            if tenants:
                arguments += ["--tenants", str(first)]
            program = Program("bench.fanout_clients", str(port), *arguments)
            processes.append(stack.enter_context(program))
            first += share
        for process in processes:
            process.line()
        yield processes
