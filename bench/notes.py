"""The cost of a stream to each member, and the trade of no-op writes against latency."""

import time
from collections.abc import Iterator
from statistics import quantiles
from typing import Any

from pymongo import MongoClient

from bench.processes import cpu_seconds
from bench.suite import Column, Options, Outcome, Plot, Suite, Table
from bench.watched_writes import COLLECTION, DATABASE, Watcher, spread, uneven, write_paced
from tests.harness.clusters import TestCluster, start_cluster
from tests.harness.routers import start_router

SHARDS = 3
RATES = (1, 5, 10, 20, 50, 100, 200)
"""Events a second, all on one shard."""
NOTES = (1, 2, 5, 10, 20)
"""Notes a second that a member may get, for the curve. The test servers' oplogs of 512 MB allow no
more (docs/design.md#idle-shards)."""
DENSE = 100
"""Events a second for the curve."""
IDLE, BUSY = "shard1", "shard0"
"""A shard without writes, and the shard that is written to."""

_LATENCY = (
    Column("p50 ms", "p50", ".1f"),
    Column("p90 ms", "p90", ".1f"),
    Column("p99 ms", "p99", ".1f"),
)
_COSTS = (
    Column("no-op writes/s", "notes", ".1f"),
    Column("idle shard: getMores/s", "idle_get_mores", ".1f"),
    Column("written shard: getMores/s", "busy_get_mores", ".1f"),
    Column("config server: getMores/s", "config_get_mores", ".1f"),
    Column("idle shard: oplog KB/s", "oplog", ".2f"),
    Column("idle shard: CPU ms/s", "cpu", ".1f"),
)
NOTE = (
    "One cluster stream; one shard is written to, the others and the config server are idle. "
    "From acknowledgement (majority) to arrival. Notes, oplog and CPU are those of an idle shard; "
    "the config server gets as many notes. Bursts are spent before the figures are taken."
)


def run(options: Options) -> Outcome:
    """Measure several event rates with default settings, then several limits of no-op writes."""
    seconds = options.scaled(20, 5)
    with start_cluster(SHARDS) as cluster:
        spread(cluster)
        by_rate = [_idle(cluster, options, seconds)]
        by_rate += [row for rate in RATES for row in _measured(cluster, options, rate, seconds)]
        curve = [
            row
            for notes in NOTES
            for row in _measured(cluster, options, DENSE, seconds, noopWritesPerSecond=notes)
        ]
    kind = "real servers" if cluster.real else "embedded cluster"
    by_rate_table = Table(
        f"Defaults, {SHARDS} shards, {kind}",
        (Column("events/s", "events"), *_LATENCY, *_COSTS),
        by_rate,
        NOTE,
    )
    curve_table = Table(
        f"{DENSE} events/s by noopWritesPerSecond, {kind}",
        (Column("no-op writes/s allowed", "allowed"), *_LATENCY, *_COSTS),
        curve,
    )
    series = {
        share: [(row["allowed"], row[share]) for row in curve] for share in ("p50", "p90", "p99")
    }
    title = f"Latency of {DENSE} events/s"
    plot = Plot("notes", title, "no-op writes/s allowed for each member", "ms", series, log_x=True)
    return Outcome([by_rate_table, curve_table], [plot])


SUITE = Suite("notes", "What does latency cost the members in notes?", run)


def _idle(cluster: TestCluster, options: Options, seconds: float) -> dict[str, Any]:
    """Measure a stream without events."""
    options.say("no events")
    with start_router(cluster.configdb, upstream=f"mongodb://{cluster.mongos}/") as router:
        watcher = Watcher(router.uri)
        watcher.start()
        time.sleep(1)
        before = _state(cluster, router.uri)
        time.sleep(seconds)
        row = {"events": 0, **_costs(before, _state(cluster, router.uri))}
        watcher.stop()
    return row


def _measured(
    cluster: TestCluster, options: Options, rate: int, seconds: float, **parameters: Any
) -> Iterator[dict[str, Any]]:
    options.say(f"{rate} events/s {parameters or ''}")
    mongos = f"mongodb://{cluster.mongos}/"
    with (
        start_router(cluster.configdb, upstream=mongos, set_parameter=parameters) as router,
        MongoClient[dict[str, Any]](mongos) as client,
    ):
        watcher = Watcher(router.uri)
        watcher.start()
        documents = client[DATABASE][COLLECTION]
        first = int(time.time() * 1000)
        if rate > min(20, parameters.get("noopWritesPerSecond", 20)):
            # Use up the burst allowance before the measurement starts.
            spent = 100 / min(rate, 200) * 2
            late = write_paced(documents, first, uneven(int(spent * rate), 1 / rate))
            first = max(late) + 1
        before = _state(cluster, router.uri)
        acknowledged = write_paced(documents, first, uneven(int(seconds * rate), 1 / rate))
        late_by = [watcher.wait_for(number) - at for number, at in acknowledged.items()]
        costs = _costs(before, _state(cluster, router.uri))
        watcher.stop()
    shares = quantiles([each * 1e3 for each in late_by], n=100, method="inclusive")
    latency = {"p50": shares[49], "p90": shares[89], "p99": shares[98]}
    allowed = parameters.get("noopWritesPerSecond")
    yield {"events": rate, "allowed": allowed, **latency, **costs}


def _state(cluster: TestCluster, router: str) -> dict[str, Any]:
    with MongoClient[dict[str, Any]](router) as client:
        members = client.admin.command("serverStatus")["mergerouter"]["members"]
    state = {"at": time.perf_counter(), "members": members}
    if cluster.real:
        with cluster.direct(IDLE) as idle:
            # Replica set members also write no-op writes of their own; count only the router's.
            written = [{"$match": {"op": "n", "o.msg": "mergerouter"}}]
            size = {"$group": {"_id": None, "bytes": {"$sum": {"$bsonSize": "$$ROOT"}}}}
            found = list(idle.local["oplog.rs"].aggregate([*written, size]))
            state["oplog"] = found[0]["bytes"] if found else 0
            state["cpu"] = cpu_seconds(idle.admin.command("serverStatus")["pid"])
    return state


def _costs(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    seconds: float = after["at"] - before["at"]

    def a_second(member: str, count: str) -> float:
        then: int = before["members"].get(member, {}).get(count, 0)
        now: int = after["members"].get(member, {}).get(count, 0)
        return (now - then) / seconds

    costs = {
        "notes": a_second(IDLE, "noopWrites"),
        "idle_get_mores": a_second(IDLE, "getMores"),
        "busy_get_mores": a_second(BUSY, "getMores"),
        "config_get_mores": a_second("config", "getMores"),
    }
    if "oplog" in after:
        costs["oplog"] = (after["oplog"] - before["oplog"]) / seconds / 1000
        costs["cpu"] = (after["cpu"] - before["cpu"]) / seconds * 1000
    return costs
