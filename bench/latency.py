"""Latency: from a write's acknowledgement to its event, and what it costs members in no-ops."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pymongo import MongoClient

from bench.kernel import cpu_seconds
from bench.programs import Program, port_of, running, serve
from bench.suite import Column, Options, Table
from bench.writes import measure_latency, random_pauses, shard_evenly
from tests.harness.clusters import TestCluster, start_cluster

SHARDS = 4
QUIET = 10.0
"""Seconds without a write before each write of a quiet stream."""
BUSY_RATES = (10, 50)
"""Writes a second on each shard while the shards are busy."""
RATES = (1, 5, 10, 20, 50, 100, 200)
"""Events a second, all on one shard."""
NOOP_RATES = (1, 2, 5, 10, 20)
"""No-op writes a second that a member may get. The test servers' oplogs of 512 MB allow no more
(docs/design.md#idle-shards)."""
DENSE = 100
"""Events a second at which their number is varied."""
IDLE, BUSY = "shard1", "shard0"
"""A shard without writes, and the shard that is written to."""
_NOOP_RATE = 20
"""No-op writes a second that a member may get by default, and that a dense stream asks for."""
_SPENDING = 10
"""Seconds in which a dense stream uses up a burst of 100 no-op writes, beyond 10 a second."""
_BACKGROUND = 1_000_000_000  # the number of the first document that nobody waits for
_COUNTERS = {
    "noop_writes": (IDLE, "noopWrites"),
    "idle_get_mores": (IDLE, "getMores"),
    "busy_get_mores": (BUSY, "getMores"),
    "config_get_mores": ("config", "getMores"),
}
"""The router's counters of its members, by figure."""

_LATENCY = (
    Column("p50 ms", "p50", ".1f"),
    Column("p90 ms", "p90", ".1f"),
    Column("p99 ms", "p99", ".1f"),
)
STATES = (
    Column("the cluster", "cluster"),
    Column("watched through", "through"),
    Column("writes", "writes"),
    *_LATENCY,
    Column("most ms", "most", ".1f"),
)
STATES_NOTE = (
    "From acknowledgement to arrival. A member's no-op interval is the default of 10 s. What a "
    "direct stream of the written shard takes is the cluster's and the driver's share."
)
COSTS = (
    Column("events/s", "events"),
    Column("no-op writes/s allowed", "allowed"),
    *_LATENCY,
    Column("no-op writes/s", "noop_writes", ".1f"),
    Column("idle shard: getMores/s", "idle_get_mores", ".1f"),
    Column("written shard: getMores/s", "busy_get_mores", ".1f"),
    Column("config server: getMores/s", "config_get_mores", ".1f"),
    Column("router CPU ms/s", "cpu", ".1f"),
    Column("idle shard: CPU ms/s", "idle_cpu", ".1f"),
)
COSTS_NOTE = (
    "One cluster stream; one shard is written to, the others and the config server are idle. "
    "From acknowledgement (majority) to arrival. No-op writes and CPU are those of an idle shard; "
    "the config server gets as many. Bursts are spent before the figures are taken."
)


def run(options: Options) -> list[Table]:
    """Measure an idle, a quiet and a busy cluster; then rates of events and of no-op writes."""
    with start_cluster(SHARDS) as cluster:
        shard_evenly(cluster)
        states = list(_states(cluster, options))
        costs = [_costs(cluster, options, rate) for rate in (0, *RATES[:: options.scaled(1, 3)])]
        costs += [
            _costs(cluster, options, DENSE, noopWritesPerSecond=allowed) for allowed in NOOP_RATES
        ]
        servers = "real servers" if cluster.real else "embedded cluster"
    return [
        Table(f"{SHARDS} shards, {servers}", STATES, states, STATES_NOTE),
        Table(f"cost by rates of events and no-op writes, {servers}", COSTS, costs, COSTS_NOTE),
    ]


def _states(cluster: TestCluster, options: Options) -> Iterator[dict[str, Any]]:
    """Watch directly, through the router and through a real mongos, in each state."""
    uri, count, first = cluster.mongos_uri, options.scaled(150, 30), 0
    brief = random_pauses(count, 0.1)
    with serve(cluster.configdb, f"--upstream={uri}") as (router, _):
        ways = {"one shard directly": port_of(cluster.shards[BUSY]), "router": str(router)}
        if cluster.real:
            ways["mongos"] = port_of(cluster.mongos)
        for state, pauses, rate in (
            ("other members idle", random_pauses(count, 0.2), 0),
            (f"quiet for {QUIET:g} s before", [QUIET] * options.scaled(4, 1), 0),
            *((f"{rate} writes/s on each shard", brief, rate) for rate in BUSY_RATES),
        ):
            for through, port in ways.items():
                print(f"{state}: {through}")
                with _busy(cluster, rate) if rate else nullcontext():
                    figures = measure_latency(uri, first, pauses, "bench.watchers", port)
                first += len(pauses)
                row = {"cluster": state, "through": through, "writes": len(pauses)}
                yield {**row, **figures}


def _busy(cluster: TestCluster, rate: int) -> AbstractContextManager[Program]:
    """Write ``rate`` documents a second to each shard during the block."""
    shards = map(str, range(len(cluster.shards)))
    first = _BACKGROUND + time.monotonic_ns() // 1000
    arguments = ("--shards", *shards, "--rate", str(rate), "--first", str(first))
    return running("bench.writes", cluster.mongos_uri, *arguments)


def _costs(cluster: TestCluster, options: Options, rate: int, **parameters: Any) -> dict[str, Any]:
    """Write ``rate`` documents a second through a new router; return latency and costs."""
    print(f"{rate} events/s {parameters or ''}")
    seconds, flags = options.scaled(20, 4), [f"--upstream={cluster.mongos_uri}"]
    flags += [f"--setParameter={name}={value}" for name, value in parameters.items()]
    row: dict[str, Any] = {"events": rate, "allowed": parameters.get("noopWritesPerSecond")}
    with serve(cluster.configdb, *flags) as (port, pid):
        watcher, first = ("bench.watchers", str(port)), int(time.time() * 1000)
        costs = _added_costs(row, cluster, port, pid)
        if not rate:
            with running(*watcher), costs:
                time.sleep(seconds)
            return row
        if rate > (row["allowed"] or _NOOP_RATE):
            pauses = random_pauses(_SPENDING * rate, 1 / rate)
            measure_latency(cluster.mongos_uri, first, pauses, *watcher)
            first += len(pauses)
        pauses = random_pauses(seconds * rate, 1 / rate)
        row |= measure_latency(cluster.mongos_uri, first, pauses, *watcher, meanwhile=costs)
    return row


@contextmanager
def _added_costs(row: dict[str, Any], cluster: TestCluster, port: int, pid: int) -> Iterator[None]:
    """Add to ``row`` what members and the router do and use in a second of the block."""
    begun, before, used = time.perf_counter(), _members(port), _cpu(cluster, pid)
    yield
    seconds = time.perf_counter() - begun
    after, used_after = _members(port), _cpu(cluster, pid)
    for figure, (member, counter) in _COUNTERS.items():
        grown = after.get(member, {}).get(counter, 0) - before.get(member, {}).get(counter, 0)
        row[figure] = grown / seconds
    row |= {name: (used_after[name] - used[name]) / seconds * 1e3 for name in used}


def _members(port: int) -> dict[str, Any]:
    """Return the router's counters of its members."""
    with MongoClient[dict[str, Any]]("127.0.0.1", port) as client:
        status = client.admin.command("serverStatus")
    members: dict[str, Any] = status["mergerouter"]["members"]
    return members


def _cpu(cluster: TestCluster, router: int) -> dict[str, float]:
    """Return the CPU seconds of the router, and of an idle shard that is a process of its own."""
    costs = {"cpu": cpu_seconds(router)}
    if cluster.real:
        with cluster.direct(IDLE) as idle:
            costs["idle_cpu"] = cpu_seconds(idle.admin.command("serverStatus")["pid"])
    return costs
