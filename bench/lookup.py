"""updateLookup on real servers: one by one through mongos, in batches through the router."""

import json
from collections.abc import Sequence
from typing import Any

from bson import Timestamp
from pymongo import InsertOne, MongoClient, UpdateOne

from bench.processes import cpu_seconds, drain, listening, medians, router
from bench.suite import Column, Options, Outcome, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, Documents, spread
from tests.harness.clusters import RealCluster, ServerBinaries, TestCluster

SHARDS = 2
EVENTS = 20_000
SIZE = 400
"""Bytes of padding in a document."""
SHARES = (0, 10, 100)
"""Updates per 100 events; the others are inserts, which need no lookup."""
_AT_A_TIME = 1_000
_APART = 1_000_000

TENANTS = 100
"""The documents belong to so many tenants in turn."""
_TENANT = 5
_ON_SHARDS = {"fullDocument.tenant": _TENANT}
_IN_ROUTER = {"$expr": {"$in": ["$fullDocument.tenant", [_TENANT]]}}
"""The same condition in a form that the shards do not evaluate for a lookup, since it may fail."""

Write = InsertOne[dict[str, Any]] | UpdateOne

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
TENANT_COLUMNS = (
    Column("condition", "condition"),
    Column("through", "through"),
    Column("shards' CPU µs/event", "shards_cpu", ",.1f"),
    Column("shards' bytes sent/event", "sent", ",.0f"),
    Column("mongos CPU µs/event", "mongos_cpu", ",.1f"),
    Column("router CPU µs/event", "router_cpu", ",.1f"),
)
TENANT_NOTE = (
    f"A stream with updateLookup and a $match on fullDocument, which one of {TENANTS} tenants "
    "meets, over inserts alone; the figures are per event of all tenants. The shards evaluate the "
    "condition for all events but updates; written as an expression that may fail, they do not, "
    "and send every insert, as they did for all conditions before."
)
NOTE = (
    "Inserts and updates of documents, one event of each, read from before. mongos has the shards "
    "look up one by one; the router looks up through the same mongos, many in one request. Beside "
    "it, the router's cost of the same stream without lookups. No-ops each second."
)


def run(options: Options) -> Outcome:
    """Measure real servers; return no tables unless MERGEROUTER_MONGO_BIN names their folder."""
    if options.real_binaries is None:
        options.say("left out: set MERGEROUTER_MONGO_BIN to the folder of mongod and mongos")
        return Outcome([])
    rows: list[dict[str, Any]] = []
    with RealCluster(ServerBinaries(options.real_binaries), SHARDS, noop_interval=1) as cluster:
        spread(cluster)
        events = options.scaled(EVENTS, EVENTS // 5)
        start, tenant_rows = "", list[dict[str, Any]]()
        for share in SHARES:
            options.say(f"{share} % updates")
            start = _write(cluster, events, share)
            rows += _measure(cluster, "in place", share, events, start, options.runs)
            if not share:
                options.say(f"one tenant of {TENANTS}")
                tenant_rows = _measure_tenant(cluster, events, start, options.runs)
        options.say("documents moved since")
        _swap(cluster)
        rows += _measure(cluster, "moved since", SHARES[-1], events, start, options.runs)
    return Outcome(
        [
            Table("lookups (medians)", COLUMNS, rows, NOTE),
            Table("one tenant's lookups (medians)", TENANT_COLUMNS, tenant_rows, TENANT_NOTE),
        ]
    )


SUITE = Suite("lookup", "What do looked-up documents cost, one by one and in batches?", run)


def _measure(
    cluster: TestCluster, where: str, share: int, events: int, start: str, runs: int
) -> list[dict[str, Any]]:
    mongos = cluster.mongos.rpartition(":")[2]
    shards = [listening("mongod", host.rpartition(":")[2]) for host in cluster.shards.values()]
    servers = {"shards_cpu": shards, "mongos_cpu": [listening("mongos", mongos)]}
    rows = []
    with router(cluster.configdb, "--upstream", f"mongodb://{cluster.mongos}") as (port, pid):
        all_servers = {**servers, "router_cpu": [pid]}
        ways = (
            ("mongos", mongos, servers, LOOKUP),
            ("router", str(port), all_servers, LOOKUP),
            ("router, no lookups", str(port), all_servers, ()),
        )
        for through, asked, processes, extra in ways:
            drained = [_drain(asked, events, start, processes, extra) for _ in range(runs)]
            row = {"share": share, "where": where, "through": through}
            rows.append({**row, **medians(drained)})
    return rows


def _measure_tenant(
    cluster: TestCluster, events: int, start: str, runs: int
) -> list[dict[str, Any]]:
    """Measure a stream of one tenant's inserts through mongos and through the router."""
    mongos = cluster.mongos.rpartition(":")[2]
    shards = [listening("mongod", host.rpartition(":")[2]) for host in cluster.shards.values()]
    servers = {"shards_cpu": shards, "mongos_cpu": [listening("mongos", mongos)]}
    rows = []
    with router(cluster.configdb, "--upstream", f"mongodb://{cluster.mongos}") as (port, pid):
        for condition, through, asked, processes in (
            (_ON_SHARDS, "mongos", mongos, servers),
            (_ON_SHARDS, "router", str(port), {**servers, "router_cpu": [pid]}),
            (_IN_ROUTER, "router", str(port), {**servers, "router_cpu": [pid]}),
        ):
            extra = (*LOOKUP, "--match", json.dumps(condition))
            drained = []
            for _ in range(runs):
                before = _bytes_sent(cluster)
                figures = _drain(asked, events, start, processes, extra, share=TENANTS)
                drained.append({**figures, "sent": (_bytes_sent(cluster) - before) / events})
            row = {"condition": json.dumps(condition), "through": through}
            rows.append({**row, **medians(drained)})
    return rows


def _bytes_sent(cluster: TestCluster) -> int:
    """Return the bytes that the shards' servers have sent so far."""
    total = 0
    for name in cluster.shards:
        with cluster.direct(name) as shard:
            total += shard.admin.command("serverStatus")["network"]["bytesOut"]
    return total


def _drain(
    port: str,
    events: int,
    start: str,
    processes: dict[str, list[int]],
    extra: tuple[str, ...],
    share: int = 1,
) -> dict[str, float]:
    """Drain the events once; return events a second and the CPU µs per event of each process.

    The stream has one of ``share`` events.
    """

    def used() -> dict[str, float]:
        return {name: sum(map(cpu_seconds, pids)) for name, pids in processes.items()}

    before = used()
    namespace = f"{DATABASE}.{COLLECTION}"
    result = drain([port], events // share, start, "--namespace", namespace, *extra)
    costs = {name: (after - before[name]) / events * 1e6 for name, after in used().items()}
    return {"rate": result["rate"] * share, **costs, "all_cpu": sum(costs.values())}


def _write(cluster: TestCluster, events: int, share: int) -> str:
    """Insert documents and update ``share`` percent of as many events; return the first's time."""
    shards = len(cluster.shards)
    first = share * _APART
    numbers = range(first, first + events)
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        documents = client[DATABASE][COLLECTION]

        def insert(number: int) -> Write:
            tenant = number // shards % TENANTS
            return InsertOne(
                {"_id": number, "s": number % shards, "tenant": tenant, "pad": "x" * SIZE}
            )

        def update(number: int) -> Write:
            return UpdateOne({"_id": number, "s": number % shards}, {"$set": {"v": number}})

        _write_all(documents, [insert(number) for number in numbers if number % 100 < share])
        start: Timestamp = client.admin.command("ping")["$clusterTime"]["clusterTime"]
        writes = [update(n) if n % 100 < share else insert(n) for n in numbers]
        _write_all(documents, writes)
    return f"{start.time}:{start.inc + 1}"


def _write_all(documents: Documents, writes: Sequence[Write]) -> None:
    for first in range(0, len(writes), _AT_A_TIME):
        documents.bulk_write(writes[first : first + _AT_A_TIME], ordered=False)


def _swap(cluster: TestCluster) -> None:
    """Move each shard's documents to the next shard."""
    names = list(cluster.shards)
    with MongoClient[dict[str, Any]](cluster.mongos_uri) as client:
        for number, name in enumerate(names[1:] + names[:1]):
            client.admin.command(
                "moveChunk", f"{DATABASE}.{COLLECTION}", find={"s": number}, to=name
            )
