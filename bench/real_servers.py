"""The same drains on MongoDB's own servers: shards directly, through mongos, through the router."""

from pathlib import Path
from typing import Any

from bson import Timestamp
from pymongo import MongoClient

from bench.processes import drain, medians, router
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, spread
from tests.harness.clusters import RealCluster, ServerBinaries, TestCluster

SHARDS = (1, 2, 4)
EVENTS = 200_000
SIZE = 400
"""Bytes of padding in a document: its insert event has about 200 more."""
_AT_A_TIME = 2_000

COLUMNS = (
    Column("shards", "shards"),
    Column("shards directly events/s", "direct_rate", ",.0f"),
    Column("mongos events/s", "mongos_rate", ",.0f"),
    Column("router events/s", "router_rate", ",.0f"),
    Column("mongos CPU µs/event", "mongos_cpu", ".2f"),
    Column("router CPU µs/event", "router_cpu", ".2f"),
    Column("router / mongos", "over_mongos", ".2f"),
    Column("router / directly", "of_direct", ".2f"),
)
NOTE = "No-ops each second on all members, so that mongos does not stand still at the end."


def run(options: Options) -> Outcome:
    """Measure where MERGEROUTER_MONGO_BIN names the servers' folder; else there is nothing."""
    if options.real_binaries is None:
        options.say("left out: set MERGEROUTER_MONGO_BIN to the folder of mongod and mongos")
        return Outcome([])
    rows = []
    for shards in (2,) if options.quick else SHARDS:
        options.say(f"{shards} real shards")
        cluster = RealCluster(ServerBinaries(options.real_binaries), shards, noop_interval=1)
        with cluster:
            rows.append(measure(cluster, options.scaled(EVENTS, EVENTS // 10), options.runs))
    series = {
        label: [(row["shards"], row[key]) for row in rows]
        for label, key in (
            ("shards directly", "direct_rate"),
            ("mongos", "mongos_rate"),
            ("router", "router_rate"),
        )
    }
    plot = Plot("real_servers", "MongoDB's own servers", "shards", "events/s", series)
    return Outcome([Table("real servers (medians)", COLUMNS, rows, NOTE)], [plot])


SUITE = Suite("real_servers", "How does the router compare to mongos on real servers?", run)


def measure(cluster: TestCluster, events: int, runs: int) -> dict[str, Any]:
    """Write once, drain ``runs`` times each way."""
    shards = len(cluster.shards)
    events -= events % shards
    spread(cluster)
    start = _write(cluster, events)
    ports = [host.rpartition(":")[2] for host in cluster.shards.values()]
    mongos = cluster.mongos.rpartition(":")[2]
    pid = _mongos_pid(mongos)

    def through_router() -> dict[str, float]:
        with router(cluster.configdb) as (port, router_pid):
            return drain([str(port)], events, start, cpu_of=router_pid)

    direct = medians([drain(ports, events, start) for _ in range(runs)])
    by_mongos = medians([drain([mongos], events, start, cpu_of=pid) for _ in range(runs)])
    by_router = medians([through_router() for _ in range(runs)])
    return {
        "shards": shards,
        "direct_rate": direct["rate"],
        "mongos_rate": by_mongos["rate"],
        "mongos_cpu": by_mongos["cpu"],
        "router_rate": by_router["rate"],
        "router_cpu": by_router["cpu"],
        "over_mongos": by_router["rate"] / by_mongos["rate"],
        "of_direct": by_router["rate"] / direct["rate"],
    }


def _write(cluster: TestCluster, events: int) -> str:
    """Insert as many documents on each shard; return where their events begin, for ``drain``."""
    shards, client = len(cluster.shards), MongoClient[dict[str, Any]](cluster.mongos_uri)
    with client:
        documents = client[DATABASE][COLLECTION]
        start: Timestamp = client.admin.command("ping")["operationTime"]
        for first in range(0, events, _AT_A_TIME):
            numbers = range(first, min(events, first + _AT_A_TIME))
            batch = [{"_id": n, "s": n % shards, "pad": "x" * SIZE} for n in numbers]
            documents.insert_many(batch, ordered=False)
    return f"{start.time}:{start.inc + 1}"


def _mongos_pid(port: str) -> int:
    """Return the id of the process that was started as mongos on ``port``."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        if words[0].endswith(b"mongos") and port.encode() in words:
            return int(entry.name)
    raise RuntimeError(f"no mongos on port {port}")
