"""updateLookup on real servers: one by one through mongos, in batches through the router."""

from typing import Any

from bson import Timestamp
from pymongo import InsertOne, MongoClient, UpdateOne

from bench.drain import drain
from bench.kernel import pid_of
from bench.programs import port_of, serve
from bench.suite import Column, Options, Table, has_real_servers, medians
from bench.writes import COLLECTION, DATABASE, shard_evenly
from tests.harness.clusters import TestCluster, start_real_cluster

SHARDS = 2
EVENTS = 20_000
SIZE = 400
"""Bytes of padding in a document."""
SHARES = (0, 10, 100)
"""Updates per 100 events; the others are inserts, which need no lookup."""
_APART = 1_000_000
LOOKUP = ("--full-document", "updateLookup")

COLUMNS = (
    Column("updates %", "share"),
    Column("documents", "where"),
    Column("through", "through"),
    Column("events/s", "rate", ",.0f"),
    Column("shards' CPU µs/event", "shards_cpu", ",.1f"),
    Column("mongos CPU µs/event", "mongos_cpu", ",.1f"),
    Column("router CPU µs/event", "router_cpu", ",.1f"),
    Column("all CPU µs/event", "all_cpu", ",.1f"),
)
NOTE = (
    "Inserts and updates of documents, one event of each, read from before. mongos has the shards "
    "look up one by one; the router looks up through the same mongos, many in one request. Beside "
    "it, the router's cost of the same stream without lookups. No-ops each second."
)


def run(options: Options) -> list[Table]:
    """Measure real servers; return no tables unless MERGEROUTER_MONGO_BIN names their folder."""
    if not has_real_servers():
        return []
    rows: list[dict[str, Any]] = []
    with start_real_cluster(SHARDS, noop_interval=1) as cluster:
        shard_evenly(cluster)
        events = options.scaled(EVENTS, EVENTS // 5)
        start = ""
        for share in SHARES:
            print(f"{share} % updates")
            start = _write(cluster, events, share)
            rows += _measure(cluster, "in place", share, events, start, options.runs)
        print("documents moved since")
        _swap(cluster)
        rows += _measure(cluster, "moved since", SHARES[-1], events, start, options.runs)
    return [Table("lookups (medians)", COLUMNS, rows, NOTE)]


def _measure(
    cluster: TestCluster, where: str, share: int, events: int, start: str, runs: int
) -> list[dict[str, Any]]:
    """Drain the events with lookups through mongos and the router, and without lookups."""
    mongos, rows = port_of(cluster.mongos), []
    shards = [pid_of("mongod", port_of(host)) for host in cluster.shards.values()]
    servers = {"shards_cpu": shards, "mongos_cpu": [pid_of("mongos", mongos)]}
    with serve(cluster.configdb, "--upstream", f"mongodb://{cluster.mongos}") as (port, pid):
        all_servers = {**servers, "router_cpu": [pid]}
        for through, asked, processes, extra in (
            ("mongos", mongos, servers, LOOKUP),
            ("router", str(port), all_servers, LOOKUP),
            ("router, no lookups", str(port), all_servers, ()),
        ):
            watched = ("--namespace", f"{DATABASE}.{COLLECTION}", *extra)
            figures = medians(
                [drain([asked], events, start, *watched, cpu_of=processes) for _ in range(runs)]
            )
            row = {"share": share, "where": where, "through": through, **figures}
            rows.append({**row, "all_cpu": sum(figures[name] for name in processes)})
    return rows


def _write(cluster: TestCluster, events: int, share: int) -> str:
    """Insert documents and update ``share`` percent of as many events; return the first's time."""
    shards = len(cluster.shards)
    first = share * _APART
    numbers = range(first, first + events)
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        documents = client[DATABASE][COLLECTION]

        def insert(number: int) -> InsertOne[dict[str, Any]]:
            return InsertOne({"_id": number, "s": number % shards, "pad": "x" * SIZE})

        def update(number: int) -> UpdateOne:
            return UpdateOne({"_id": number, "s": number % shards}, {"$set": {"v": number}})

        if looked_up := [insert(number) for number in numbers if number % 100 < share]:
            documents.bulk_write(looked_up, ordered=False)
        start: Timestamp = client.admin.command("ping")["$clusterTime"]["clusterTime"]
        writes = [update(n) if n % 100 < share else insert(n) for n in numbers]
        documents.bulk_write(writes, ordered=False)
    return f"{start.time}:{start.inc + 1}"


def _swap(cluster: TestCluster) -> None:
    """Move each shard's documents to the next shard."""
    names = list(cluster.shards)
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        for number, name in enumerate(names[1:] + names[:1]):
            client.admin.command(
                "moveChunk", f"{DATABASE}.{COLLECTION}", find={"s": number}, to=name
            )
