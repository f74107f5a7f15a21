"""Drains on real servers: the shards directly, through mongos, and through the router."""

from typing import Any

from bson import Timestamp
from pymongo import MongoClient

from bench.flame import profiled
from bench.members import Members
from bench.processes import cpu_seconds, drain, listening, medians, router
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, spread
from tests.harness.clusters import RealCluster, ServerBinaries, TestCluster

SHARDS = (1, 2, 4)
EVENTS = 200_000
SIZE = 400
"""Bytes of padding in a document. Its insert event is about 200 bytes longer."""
_AT_A_TIME = 2_000

COLUMNS = (
    Column("shards", "shards"),
    Column("shards directly events/s", "direct_rate", ",.0f"),
    Column("mongos events/s", "mongos_rate", ",.0f"),
    Column("router events/s", "router_rate", ",.0f"),
    Column("router / mongos", "over_mongos", ".2f"),
    Column("router / directly", "of_direct", ".2f"),
    Column("mongos CPU µs/event", "mongos_cpu", ".2f"),
    Column("router CPU µs/event", "router_cpu", ".2f"),
    Column("router / mongos, CPU", "cpu_of_mongos", ".2f"),
    Column("mongods' CPU µs/event: directly", "direct_members", ".2f"),
    Column("with mongos", "mongos_members", ".2f"),
    Column("with the router", "router_members", ".2f"),
)
NOTE = (
    "No-ops each second on all members, so that mongos does not stand still at the end. CPU is the "
    "kernel's count for the whole process, from the stream's opening on."
)


def run(options: Options) -> Outcome:
    """Measure real servers; return no tables unless MERGEROUTER_MONGO_BIN names their folder."""
    if options.real_binaries is None:
        options.say("left out: set MERGEROUTER_MONGO_BIN to the folder of mongod and mongos")
        return Outcome([])
    rows = []
    events = options.scaled(EVENTS, EVENTS // 10)
    for shards in (4,) if options.quick else SHARDS:
        options.say(f"{shards} real shards")
        cluster = RealCluster(ServerBinaries(options.real_binaries), shards, noop_interval=1)
        with cluster:
            rows.append(measure(cluster, events, options))
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


def measure(cluster: TestCluster, events: int, options: Options) -> dict[str, Any]:
    """Insert ``events`` documents, then drain them several times in each way, in turn.

    Returns a row of COLUMNS with the medians.
    """
    shards = len(cluster.shards)
    events -= events % shards
    spread(cluster)
    start = _write(cluster, events)
    ports = [host.rpartition(":")[2] for host in cluster.shards.values()]
    mongos = cluster.mongos.rpartition(":")[2]
    mongos_pid = listening("mongos", mongos)
    members = Members(cluster)

    def drained(ports: list[str], pid: int | None = None) -> dict[str, float]:
        before = sum(map(cpu_seconds, members.pids))
        figures = drain(ports, events, start, cpu_of=pid)
        after = sum(map(cpu_seconds, members.pids))
        return {**figures, "members": (after - before) / events * 1e6}

    found: dict[str, list[dict[str, float]]] = {"direct": [], "mongos": [], "router": []}
    drained(ports)  # fill the servers' caches with the newest entries
    for _ in range(options.runs):
        # Alternate, so that changes in the machine's load affect all ways alike.
        found["direct"].append(drained(ports))
        found["mongos"].append(drained([mongos], mongos_pid))
        with router(cluster.configdb) as (port, pid):
            found["router"].append(drained([str(port)], pid))
    if options.profile is not None:
        _profile(cluster, events, start, options)
    members.close()
    figures = {
        f"{way}_{name}": value
        for way, runs in found.items()
        for name, value in medians(runs).items()
    }
    return {
        "shards": shards,
        **figures,
        "over_mongos": figures["router_rate"] / figures["mongos_rate"],
        "of_direct": figures["router_rate"] / figures["direct_rate"],
        "cpu_of_mongos": figures["router_cpu"] / figures["mongos_cpu"],
    }


def _profile(cluster: TestCluster, events: int, start: str, options: Options) -> None:
    """Take a flame graph of the router in a separate run."""
    assert options.profile is not None
    options.profile.mkdir(exist_ok=True)
    path = options.profile / f"flame_real_{len(cluster.shards)}.svg"
    with router(cluster.configdb) as (port, pid), profiled(pid, path):
        drain([str(port)], events, start)
    options.say(f"flame graph: {path}")


def _write(cluster: TestCluster, events: int) -> str:
    """Insert equally many documents on each shard; return their start time for ``drain``."""
    shards, client = len(cluster.shards), MongoClient[dict[str, Any]](cluster.mongos_uri)
    with client:
        documents = client[DATABASE][COLLECTION]
        start: Timestamp = client.admin.command("ping")["operationTime"]
        for first in range(0, events, _AT_A_TIME):
            numbers = range(first, min(events, first + _AT_A_TIME))
            batch = [{"_id": n, "s": n % shards, "pad": "x" * SIZE} for n in numbers]
            documents.insert_many(batch, ordered=False)
    return f"{start.time}:{start.inc + 1}"
