"""updateLookup on real servers: one by one through mongos, in batches through the router."""

from typing import Any

from bson import Timestamp
from pymongo import MongoClient, UpdateOne

from bench.processes import cpu_seconds, drain, listening, medians, router
from bench.suite import Column, Options, Outcome, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, spread
from tests.harness.clusters import RealCluster, ServerBinaries, TestCluster

SHARDS = 2
EVENTS = 20_000
SIZE = 400
"""Bytes of padding in a document."""
_AT_A_TIME = 1_000

COLUMNS = (
    Column("documents", "where"),
    Column("through", "through"),
    Column("events/s", "rate", ",.0f"),
    Column("shards' CPU µs/event", "shards_cpu", ",.1f"),
    Column("mongos CPU µs/event", "mongos_cpu", ",.1f"),
    Column("router CPU µs/event", "router_cpu", ",.1f"),
    Column("all CPU µs/event", "all_cpu", ",.1f"),
)
NOTE = (
    "One update of each document, read from before. mongos has the shards look up one by one; the "
    "router looks up through the same mongos, many in one request. No-ops each second."
)


def run(options: Options) -> Outcome:
    """Measure real servers; return no tables unless MERGEROUTER_MONGO_BIN names their folder."""
    if options.real_binaries is None:
        options.say("left out: set MERGEROUTER_MONGO_BIN to the folder of mongod and mongos")
        return Outcome([])
    rows: list[dict[str, Any]] = []
    with RealCluster(ServerBinaries(options.real_binaries), SHARDS, noop_interval=1) as cluster:
        spread(cluster)
        start = _update_all(cluster, options.scaled(EVENTS, EVENTS // 5))
        for where in ("where they were updated", "moved since"):
            options.say(f"documents {where}")
            if rows:
                _swap(cluster)
            events = options.scaled(EVENTS, EVENTS // 5)
            rows += _measure(cluster, where, events, start, options.runs)
    return Outcome([Table("lookups (medians)", COLUMNS, rows, NOTE)])


SUITE = Suite("lookup", "What do looked-up documents cost, one by one and in batches?", run)


def _measure(
    cluster: TestCluster, where: str, events: int, start: str, runs: int
) -> list[dict[str, Any]]:
    mongos = cluster.mongos.rpartition(":")[2]
    shards = [listening("mongod", host.rpartition(":")[2]) for host in cluster.shards.values()]
    servers = {"shards_cpu": shards, "mongos_cpu": [listening("mongos", mongos)]}
    rows = []
    with router(cluster.configdb, "--upstream", f"mongodb://{cluster.mongos}") as (port, pid):
        ways = (
            ("mongos", mongos, servers),
            ("router", str(port), {**servers, "router_cpu": [pid]}),
        )
        for through, asked, processes in ways:
            figures = medians([_drain(asked, events, start, processes) for _ in range(runs)])
            rows.append({"where": where, "through": through, **figures})
    return rows


def _drain(port: str, events: int, start: str, processes: dict[str, list[int]]) -> dict[str, float]:
    """Drain the updates once; return events a second and the CPU µs per event of each process."""

    def used() -> dict[str, float]:
        return {name: sum(map(cpu_seconds, pids)) for name, pids in processes.items()}

    before = used()
    arguments = ("--full-document", "updateLookup", "--namespace", f"{DATABASE}.{COLLECTION}")
    result = drain([port], events, start, *arguments)
    costs = {name: (after - before[name]) / events * 1e6 for name, after in used().items()}
    return {"rate": result["rate"], **costs, "all_cpu": sum(costs.values())}


def _update_all(cluster: TestCluster, events: int) -> str:
    """Insert the documents, update each once, and return the cluster time of the first update."""
    shards = len(cluster.shards)
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        documents = client[DATABASE][COLLECTION]
        for first in range(0, events, _AT_A_TIME):
            numbers = range(first, min(events, first + _AT_A_TIME))
            batch = [{"_id": n, "s": n % shards, "pad": "x" * SIZE} for n in numbers]
            documents.insert_many(batch, ordered=False)
        start: Timestamp = client.admin.command("ping")["$clusterTime"]["clusterTime"]
        for first in range(0, events, _AT_A_TIME):
            numbers = range(first, min(events, first + _AT_A_TIME))
            changes = [UpdateOne({"_id": n, "s": n % shards}, {"$set": {"v": n}}) for n in numbers]
            documents.bulk_write(changes, ordered=False)
    return f"{start.time}:{start.inc + 1}"


def _swap(cluster: TestCluster) -> None:
    """Move each shard's documents to the next shard."""
    names = list(cluster.shards)
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        for number, name in enumerate(names[1:] + names[:1]):
            client.admin.command(
                "moveChunk", f"{DATABASE}.{COLLECTION}", find={"s": number}, to=name
            )
