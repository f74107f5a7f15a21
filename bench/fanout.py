"""Many clients of one stream: their cost to the router and the shards, in CPU and memory."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from pymongo import MongoClient

from bench.events import FIRST_SECOND
from bench.processes import (
    ReplayedCluster,
    cpu_seconds,
    peak_memory,
    replayed_cluster,
    resident_memory,
    router,
)
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
        with _opened(port, clients, cluster.events) as processes:
            idle = resident_memory(pid)
            cursors = sum(_open_cursors(each) for each in cluster.all_ports)
            used = cpu_seconds(pid)
            for process in processes:
                _tell(process)
            results = [json.loads(_line(process)) for process in processes]
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
def _opened(port: int, clients: int, events: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that open the clients' cursors and then wait for a line on stdin."""
    shares = [clients // PROCESSES + (n < clients % PROCESSES) for n in range(PROCESSES)]
    start = f"{FIRST_SECOND}:1"
    with ExitStack() as stack:
        processes = []
        for share in filter(None, shares):
            command = [sys.executable, "-m", "bench.fanout_clients", str(port), "--start", start]
            command += ["--clients", str(share), "--events", str(events)]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(_end, process)
            processes.append(process)
        for process in processes:
            _line(process)
        yield processes


def _open_cursors(port: str) -> int:
    with MongoClient("127.0.0.1", int(port), directConnection=True) as client:
        status = client.admin.command("serverStatus")
    return int(status["metrics"]["cursor"]["open"]["total"])


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a process of clients has ended")
    return line


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait()
