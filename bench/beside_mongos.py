"""The router on real servers beside mongos: throughput, the cost of watching, and latency."""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import mean
from typing import Any

from bench.drain import drain
from bench.kernel import cpu_seconds, pid_of
from bench.members import Members
from bench.programs import port_of, results_of, running, serve
from bench.suite import Column, Options, Table, has_real_servers, medians
from bench.writes import fill, latencies, percentiles, shard_evenly
from tests.harness.clusters import TestCluster, start_real_cluster, start_real_set
from tests.harness.replica_sets import ReplicaSet
from tests.harness.server_settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Way:
    """One way to watch.

    Args:
        name: its name in the tables.
        port: the port that the clients connect to, None to watch nothing.
        pid: the process that serves them, None if no process but the members' does.
    """

    name: str
    port: int | None = None
    pid: int | None = None

    def cpu(self) -> float:
        """Return the CPU seconds that its process has used."""
        return cpu_seconds(self.pid) if self.pid else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """The writes of a measurement: ``rate`` documents a second to each of ``shards``."""

    name: str
    shards: Sequence[int] = ()
    rate: float = 0.0


DRAINED_SHARDS = (1, 2, 4)
EVENTS = 200_000
SIZE = 400
"""Bytes of padding in a document. Its insert event is about 200 bytes longer."""
SHARDS = 3
LOADS = (
    Load("idle"),
    Load("one member busy, 100/s", (0,), 100),
    Load("all members busy, 30/s each", (0, 1, 2), 30),
)
WATCHERS = ((1, False), (100, False), (100, True), (300, False), (300, True))
"""Numbers of clients, and whether each client has a filter of its own."""
WATCHED_LOAD = Load("all members busy, 10/s each", (0, 1, 2), 10)
WATCHERS_OF_A_SET = (1, 200)
_ROUTER_SECONDS, _MONGOS_SECONDS = 8.0, 20.0
_first_numbers = count(0, 1_000_000)
"""The number of each writer's first document."""

BACKLOG_COLUMNS = (
    Column("shards", "shards"),
    Column("shards directly events/s", "direct_rate", ",.0f"),
    Column("mongos events/s", "mongos_rate", ",.0f"),
    Column("router events/s", "router_rate", ",.0f"),
    Column("router / mongos", "over_mongos", ".2f"),
    Column("mongos CPU µs/event", "mongos_cpu", ".2f"),
    Column("router CPU µs/event", "router_cpu", ".2f"),
    Column("mongods' CPU µs/event: directly", "direct_members", ".2f"),
    Column("with mongos", "mongos_members", ".2f"),
    Column("with the router", "router_members", ".2f"),
)
BACKLOG_NOTE = (
    "No-ops each second on all members, so that mongos does not stand still at the end. CPU is the "
    "kernel's count for the whole process, from the stream's opening on."
)
_COST_COLUMNS = (
    Column("watched through", "way"),
    Column("p50 ms", "p50", ",.0f"),
    Column("p99 ms", "p99", ",.0f"),
    Column("CPU ms/s", "cpu", ".1f"),
    Column("mongods' CPU ms/s", "members_cpu", ",.0f"),
    Column("no-op writes/s, of a shard", "noop_writes", ".1f"),
    Column("no-op writes/s, of the config server", "config_noop_writes", ".1f"),
    Column("most oplog by no-op writes, MB a day", "noop_bytes", ",.0f"),
    Column("getMores/s, of a shard", "get_mores", ".1f"),
    Column("connections, at most", "connections"),
)
LOADS_COLUMNS = (Column("the cluster", "load"), *_COST_COLUMNS)
WATCHERS_COLUMNS = (Column("clients", "clients"), Column("filters", "filters"), *_COST_COLUMNS)
LOADS_NOTE = (
    "Default no-ops. From a write's acknowledgement by a majority to its arrival. mongods' CPU is "
    "that of all shards and the config server, writes included; connections and oplog are those "
    'of the member that has most, what is "of a shard" is the mean. There is no figure of '
    "connections if more have been closed meanwhile. mongos is watched while no router runs."
)


def run(options: Options) -> list[Table]:
    """Measure real servers; return no tables unless MERGEROUTER_MONGO_BIN names their folder."""
    if not has_real_servers():
        return []
    drained = []
    for shards in (4,) if options.quick else DRAINED_SHARDS:
        print(f"draining {shards} shards")
        with start_real_cluster(shards, noop_interval=1) as cluster, Members.of(cluster) as members:
            drained.append(_drained(cluster, members, options))
    with start_real_cluster(SHARDS) as cluster, Members.of(cluster) as members:
        shard_evenly(cluster)
        loads = list(_loads(cluster, members, options))
        watchers = list(_watchers(cluster, members, options))
    with (
        start_real_set("rs0", settings=ServerSettings()) as servers,
        Members({"rs0": servers.host_string}) as members,
    ):
        watchers += _watchers_of_a_set(servers, members, options)
    return [
        Table("a backlog (medians)", BACKLOG_COLUMNS, drained, BACKLOG_NOTE),
        Table(f"{SHARDS} shards, one client", LOADS_COLUMNS, loads, LOADS_NOTE),
        Table(
            f"{SHARDS} shards, {WATCHED_LOAD.name}, and a replica set", WATCHERS_COLUMNS, watchers
        ),
    ]


def _drained(cluster: TestCluster, members: Members, options: Options) -> dict[str, Any]:
    """Insert documents, then drain them several times in each way; return a row of medians."""
    shards, events = len(cluster.shards), options.scaled(EVENTS, EVENTS // 10)
    events -= events % shards
    shard_evenly(cluster)
    start = fill(cluster, events, lambda _: {"pad": "x" * SIZE})
    ports = [port_of(host) for host in cluster.shards.values()]
    mongos = port_of(cluster.mongos)
    mongos_pid, mongods = pid_of("mongos", mongos), [*members.pids.values()]

    def drained(ports: list[str], *pids: int) -> dict[str, float]:
        return drain(ports, events, start, cpu_of={"cpu": pids, "members": mongods})

    by_way: dict[str, list[dict[str, float]]] = {"direct": [], "mongos": [], "router": []}
    drained(ports)  # fill the servers' caches with the newest entries
    for _ in range(options.runs):
        # Alternate, so that changes in the machine's load affect all ways alike.
        by_way["direct"].append(drained(ports))
        by_way["mongos"].append(drained([mongos], mongos_pid))
        with serve(cluster.configdb) as (port, pid):
            by_way["router"].append(drained([str(port)], pid))
    figures = {
        f"{way}_{name}": value
        for way, runs in by_way.items()
        for name, value in medians(runs).items()
    }
    ratio = figures["router_rate"] / figures["mongos_rate"]
    return {"shards": shards, **figures, "over_mongos": ratio}


def _ways(cluster: TestCluster) -> tuple[Way, Way]:
    port = int(port_of(cluster.mongos))
    return Way("nobody"), Way("mongos", port, pid_of("mongos", port))


def _loads(cluster: TestCluster, members: Members, options: Options) -> Iterator[dict[str, Any]]:
    nobody, mongos = _ways(cluster)
    uri = cluster.mongos_uri
    seconds, of_mongos = (4.0, 8.0) if options.quick else (_ROUTER_SECONDS, _MONGOS_SECONDS)
    for load in LOADS:
        print(f"{load.name}: nobody, then mongos")
        yield _observe(uri, members, nobody, load, seconds)
        yield _observe(uri, members, mongos, load, of_mongos)
    with serve(cluster.configdb, f"--upstream={uri}") as (port, pid):
        for load in LOADS:
            print(f"{load.name}: router")
            way = Way("router", port, pid)
            yield _observe(uri, members, way, load, seconds, settle=3.0)


def _watchers(cluster: TestCluster, members: Members, options: Options) -> Iterator[dict[str, Any]]:
    nobody, mongos = _ways(cluster)
    uri = cluster.mongos_uri
    cases = WATCHERS[1:3] if options.quick else WATCHERS
    yield _observe(uri, members, nobody, WATCHED_LOAD, _ROUTER_SECONDS) | {"clients": 0}
    for clients, distinct in cases:
        with serve(cluster.configdb, f"--upstream={uri}") as (port, pid):
            for way in (mongos, Way("router", port, pid)):
                print(f"{clients} watchers, {'un' * distinct}equal: {way.name}")
                # The router has no watchers here, so its no-op writes do not make mongos faster.
                figures = _observe(
                    uri, members, way, WATCHED_LOAD, 10.0,
                    clients=clients, distinct=distinct, settle=2.0,
                )  # fmt: skip
                yield figures | {"filters": "unequal" if distinct else "equal"}


def _watchers_of_a_set(
    servers: ReplicaSet, members: Members, options: Options
) -> Iterator[dict[str, Any]]:
    port = int(port_of(servers.host_string))
    load = Load("a replica set", (0,), 100)
    for clients in WATCHERS_OF_A_SET:
        with serve(servers.host_string, flag="--replicaSet") as (through, pid):
            for way in (Way("the set itself", port), Way("router, --replicaSet", through, pid)):
                print(f"{clients} watchers of a replica set: {way.name}")
                figures = _observe(
                    servers.set_uri, members, way, load, 10.0, clients=clients, settle=2.0
                )
                yield figures | {"filters": "equal"}


def _observe(
    uri: str,
    members: Members,
    way: Way,
    load: Load,
    seconds: float,
    *,
    clients: int = 1,
    distinct: bool = False,
    settle: float = 1.0,
) -> dict[str, Any]:
    """Watch ``way`` for some seconds under ``load``; return its costs and the events' latency.

    Args:
        uri: what the writes go through.
        members: whose counters run.
        way: how to watch.
        load: what is written meanwhile.
        seconds: how long the counters run.
        clients: how many clients watch.
        distinct: whether each has a filter of its own, which all documents pass.
        settle: seconds before the counters run.

    Raises:
        RuntimeError: an event does not arrive.
    """
    watch = ["--clients", str(clients), "--watch", "distinct" if distinct else "equal"]
    shards = ["--shards", *map(str, load.shards), "--rate", str(load.rate)]
    with contextlib.ExitStack() as stack:
        before_all = members.moment()
        watchers, writer = None, None
        if way.port is not None:
            watchers = stack.enter_context(running("bench.watchers", str(way.port), *watch))
        if load.rate:
            first = ("--first", str(next(_first_numbers)))
            writer = stack.enter_context(running("bench.writes", uri, *shards, *first))
        time.sleep(settle)
        # A process's CPU is read when the members' counters have been, which takes some time.
        before, used = members.moment(), way.cpu()
        time.sleep(seconds)
        after, used = members.moment(), way.cpu() - used
        acknowledged = results_of([writer])[0] if writer else {}
        arrived = {}
        if watchers is not None:
            watchers.tell(str(len(acknowledged)))
            arrived = json.loads(watchers.line())["arrivals"]
    each = members.between(before, after)
    of_shards = [figures for name, figures in each.items() if name != "config"]
    late = [] if watchers is None else latencies(acknowledged, arrived)
    opened = max(
        last["connections"] - before_all.counts[name]["connections"]
        for name, last in before.counts.items()
    )
    return {
        "load": load.name,
        "way": way.name,
        "clients": clients,
        "cpu": used / (after.at - before.at) * 1e3 if way.pid else None,
        "members_cpu": sum(figures["cpu"] for figures in each.values()),
        "noop_writes": mean(figures["noop_writes"] for figures in of_shards),
        "config_noop_writes": each["config"]["noop_writes"] if "config" in each else None,
        "noop_bytes": max(figures["noop_bytes"] for figures in each.values()) * 86_400 / 1e6,
        "get_mores": mean(figures["get_mores"] for figures in of_shards),
        "connections": opened if opened >= 0 else None,  # earlier ones have been closed meanwhile
        **(percentiles(late) if late else {}),
    }
