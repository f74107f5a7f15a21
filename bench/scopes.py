"""Many collections of one database: one scan of the oplogs for all streams, or one for each."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from pymongo import MongoClient

from bench.members import Members
from bench.processes import listening, medians, open_cursors, router
from bench.program import Program
from bench.suite import Column, Options, Outcome, Suite, Table
from bench.watched_writes import DATABASE
from tests.harness.clusters import RealCluster, ServerBinaries, TestCluster

SHARDS = 2
WATCHERS = (2, 5, 20)


class Load(NamedTuple):
    """The writes of a run.

    ``unwatched`` is the fraction that goes to a collection that nobody watches, and ``size`` the
    number of bytes of padding in a document there.
    """

    unwatched: float
    size: int


SIZE = 300
LOADS = (Load(0.0, SIZE), Load(0.9, SIZE), Load(0.9, 10_000))
WRITES, BATCH = 8_000, 200
ELSEWHERE = "elsewhere"
MODES = ("never", "always")

_SETTLED = 1.5
"""Seconds after which the cursors that the openings needed are closed."""

COLUMNS = (
    Column("collections", "watchers"),
    Column("unwatched writes", "unwatched", ".0%"),
    Column("their bytes", "size", ",d"),
    Column("watched through", "way"),
    Column("cursors on shards and config server", "cursors", ",.0f"),
    Column("shards' CPU µs/write", "shards", ",.0f"),
    Column("mongos's", "mongos", ",.0f"),
    Column("router's", "router", ",.0f"),
    Column("seconds", "seconds", ".1f"),
)
NOTE = (
    f"{SHARDS} shards, {WRITES} inserts in batches of {BATCH} through mongos, in turn to the "
    "collections of one database, each with a stream of its own; until every stream has its "
    "events. The CPU includes the writes; the shards' includes the config server's. The router "
    "has shareScopes=never, or always."
)


def run(options: Options) -> Outcome:
    """Measure real servers; return no tables unless MERGEROUTER_MONGO_BIN names their folder."""
    if options.real_binaries is None:
        options.say("left out: set MERGEROUTER_MONGO_BIN to the folder of mongod and mongos")
        return Outcome([])
    with RealCluster(ServerBinaries(options.real_binaries), SHARDS, noop_interval=1) as cluster:
        _spread(cluster)
        rows = list(_measured(cluster, options))
    return Outcome([Table("collections on real servers (medians)", COLUMNS, rows, NOTE)])


SUITE = Suite("scopes", "What do the streams of many collections cost?", run)


def _spread(cluster: TestCluster) -> None:
    """Distribute each collection over all shards."""
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        client.admin.command("balancerStop")
        client.admin.command("enableSharding", DATABASE)
        for name in (ELSEWHERE, *map(_collection, range(max(WATCHERS)))):
            namespace = f"{DATABASE}.{name}"
            client.admin.command(
                "shardCollection", namespace, key={"_id": "hashed"}, numInitialChunks=SHARDS
            )


def _collection(number: int) -> str:
    """Return the name of the collection that a watcher watches (bench/live_watchers.py)."""
    return f"events{number}"


def _measured(cluster: TestCluster, options: Options) -> Iterator[dict[str, Any]]:
    members = Members(cluster)
    mongos = int(cluster.mongos.rpartition(":")[2])
    pids = {"mongos": listening("mongos", mongos)}
    for load in LOADS:
        yield _row(cluster, members, "nobody", 0, 0, load, pids, options)
        for watchers in WATCHERS:
            about = f"{watchers} collections, {load.unwatched:.0%} elsewhere"
            options.say(f"{about}: mongos")
            yield _row(cluster, members, "mongos", mongos, watchers, load, pids, options)
            for mode in MODES:
                options.say(f"{about}: router, shareScopes={mode}")
                arguments = (
                    f"--upstream={cluster.mongos_uri}",
                    f"--setParameter=shareScopes={mode}",
                )
                with router(cluster.configdb, *arguments) as (port, pid):
                    name, all_pids = f"router, {mode}", {**pids, "router": pid}
                    yield _row(cluster, members, name, port, watchers, load, all_pids, options)
    members.close()


def _row(
    cluster: TestCluster,
    members: Members,
    way: str,
    port: int,
    watchers: int,
    load: Load,
    pids: dict[str, int],
    options: Options,
) -> dict[str, Any]:
    taken = [_once(cluster, members, port, watchers, load, pids) for _ in range(options.runs)]
    return {"watchers": watchers, **load._asdict(), "way": way, **medians(taken)}


def _once(
    cluster: TestCluster,
    members: Members,
    port: int,
    watchers: int,
    load: Load,
    pids: dict[str, int],
) -> dict[str, float]:
    """Write once, watched by ``watchers`` streams through ``port``; return the costs."""
    write = partial(_write, cluster, max(1, watchers), load)
    if not watchers:
        return members.cost_of_writes(write, WRITES, pids)
    hosts = [*cluster.shards.values(), cluster.configdb]
    ports = [host.rpartition(":")[2] for host in hosts]
    expected = round(WRITES * (1 - load.unwatched))
    idle = sum(map(open_cursors, ports))
    options = ["--clients", str(watchers), "--watch", "collection", "--expect", str(expected)]
    with Program("bench.live_watchers", str(port), *options) as process:
        process.line()
        time.sleep(_SETTLED)
        cursors = sum(map(open_cursors, ports)) - idle
        return {**members.cost_of_writes(write, WRITES, pids, process), "cursors": cursors}


def _write(cluster: TestCluster, collections: int, load: Load) -> None:
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        database = client[DATABASE]
        for step in range(WRITES // BATCH):
            elsewhere = round(BATCH * load.unwatched)
            if elsewhere:
                database[ELSEWHERE].insert_many(_documents(elsewhere, load.size), ordered=False)
            if elsewhere < BATCH:
                watched = database[_collection(step % collections)]
                watched.insert_many(_documents(BATCH - elsewhere, SIZE), ordered=False)


def _documents(count: int, size: int) -> list[dict[str, Any]]:
    return [{"pad": "x" * size} for _ in range(count)]
