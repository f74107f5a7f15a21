"""The cost of watching to a cluster of real servers, and the latency of events."""

from collections.abc import Iterator
from typing import Any

from bench.members import Members
from bench.processes import listening, router
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.watched_writes import spread
from bench.watching import Load, Way, observe
from tests.harness.clusters import RealCluster, ServerBinaries, TestCluster

SHARDS = 3
LOADS = (
    Load("idle"),
    Load("one member busy, 100/s", (0,), 100),
    Load("all members busy, 30/s each", (0, 1, 2), 30),
)
WATCHERS = ((1, False), (100, False), (100, True), (300, False), (300, True))
"""Numbers of clients, and whether each client has a filter of its own."""
_WATCHED = Load("all members busy, 10/s each", (0, 1, 2), 10)
_ROUTER_SECONDS, _MONGOS_SECONDS = 8.0, 20.0
_NOOP_SECONDS = 11.0
"""Seconds after which every idle member has written a no-op, so that mongos has released all
events."""

_COSTS = (
    Column("CPU ms/s", "cpu", ".1f"),
    Column("mongods' CPU ms/s", "members_cpu", ",.0f"),
    Column("no-op writes/s, of a shard", "notes", ".1f"),
    Column("no-op writes/s, of the config server", "config_notes", ".1f"),
    Column("most oplog by no-op writes, MB a day", "note_bytes", ",.0f"),
    Column("getMores/s, of a shard", "get_mores", ".1f"),
    Column("connections, at most", "connections"),
)
COLUMNS = (
    Column("the cluster", "load"),
    Column("watched through", "way"),
    Column("p50 ms", "p50", ",.0f"),
    Column("p99 ms", "p99", ",.0f"),
    *_COSTS,
)
WATCHERS_COLUMNS = (
    Column("clients", "clients"),
    Column("filters", "filters"),
    Column("watched through", "way"),
    Column("p50 ms", "p50", ",.0f"),
    Column("p99 ms", "p99", ",.0f"),
    *_COSTS,
)
NOTE = (
    "Default no-ops. From a write's acknowledgement by a majority to its arrival. mongods' CPU is "
    "that of all shards and the config server, writes included; connections and notes are those "
    "of the member that has most. mongos is watched while no router runs."
)


def run(options: Options) -> Outcome:
    """Measure real servers; return no tables unless MERGEROUTER_MONGO_BIN names their folder."""
    if options.real_binaries is None:
        options.say("left out: set MERGEROUTER_MONGO_BIN to the folder of mongod and mongos")
        return Outcome([])
    with RealCluster(ServerBinaries(options.real_binaries), SHARDS) as cluster:
        spread(cluster)
        members = Members(cluster)
        loads = list(_loads(cluster, members, options))
        watchers = list(_watchers(cluster, members, options))
        members.close()
    title = f"{SHARDS} shards, one client"
    watched = f"{SHARDS} shards, {_WATCHED.name}"
    series = {
        way: [(row["load"], row["p50"]) for row in loads if row["way"] == way and "p50" in row]
        for way in ("mongos", "router")
    }
    plot = Plot("guest", "Median latency", "the cluster", "ms", series, bars=True, log_y=True)
    tables = [Table(title, COLUMNS, loads, NOTE), Table(watched, WATCHERS_COLUMNS, watchers)]
    return Outcome(tables, [plot])


SUITE = Suite("guest", "What does watching cost real servers, and how late do events come?", run)


def _ways(cluster: TestCluster) -> tuple[Way, Way]:
    port = int(cluster.mongos.rpartition(":")[2])
    return Way("nobody"), Way("mongos", port, listening("mongos", port))


def _loads(cluster: TestCluster, members: Members, options: Options) -> Iterator[dict[str, Any]]:
    nobody, mongos = _ways(cluster)
    uri = cluster.mongos_uri
    for load in LOADS:
        options.say(f"{load.name}: nobody, then mongos")
        seconds = 4.0 if options.quick else _ROUTER_SECONDS
        yield observe(uri, members, nobody, load, seconds)
        patience = _NOOP_SECONDS if load.rate else 0.0
        seconds = 8.0 if options.quick else _MONGOS_SECONDS
        yield observe(uri, members, mongos, load, seconds, patience=patience)
    with router(cluster.configdb, f"--upstream={uri}") as (port, pid):
        for load in LOADS:
            options.say(f"{load.name}: router")
            seconds = 4.0 if options.quick else _ROUTER_SECONDS
            way = Way("router", port, pid)
            yield observe(uri, members, way, load, seconds, settle=3.0, patience=1.0)


def _watchers(cluster: TestCluster, members: Members, options: Options) -> Iterator[dict[str, Any]]:
    nobody, mongos = _ways(cluster)
    uri = cluster.mongos_uri
    cases = WATCHERS[1:3] if options.quick else WATCHERS
    yield observe(uri, members, nobody, _WATCHED, _ROUTER_SECONDS) | {"clients": 0}
    for clients, distinct in cases:
        with router(cluster.configdb, f"--upstream={uri}") as (port, pid):
            for way in (mongos, Way("router", port, pid)):
                options.say(f"{clients} watchers, {'un' * distinct}equal: {way.name}")
                # The router has no watchers here, so its no-op writes do not make mongos faster.
                figures = observe(
                    uri, members, way, _WATCHED, 10.0,
                    clients=clients, distinct=distinct, settle=2.0, patience=1.0,
                )  # fmt: skip
                yield figures | {"filters": "unequal" if distinct else "equal"}
