"""The counters of real servers' members: CPU, getMores, connections and no-op writes."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from bson import Timestamp
from pymongo import MongoClient

from bench.kernel import cpu_seconds, pid_of
from bench.programs import port_of
from tests.harness.clusters import TestCluster


@dataclass(frozen=True, slots=True)
class Moment:
    """The counters of all members at one moment, by member.

    They are ``cpu`` in ms, ``get_mores`` so far, and open ``connections``. ``at`` is
    ``time.perf_counter()``; ``time`` is the newest cluster time of any member.
    """

    at: float
    time: Timestamp
    counts: dict[str, dict[str, float]]


class Members(ExitStack):
    """The primaries of real servers, by the host strings of their sets.

    Leave the context to close the connections.
    """

    def __init__(self, hosts: Mapping[str, str]) -> None:
        super().__init__()
        self._clients: dict[str, MongoClient[dict[str, Any]]] = {}
        self.pids: dict[str, int] = {}
        """The process ids of the members."""
        for name, host in hosts.items():
            address = host.partition("/")[2]
            client = MongoClient[dict[str, Any]](f"mongodb://{address}/?directConnection=true")
            self._clients[name] = self.enter_context(client)
            self.pids[name] = pid_of("mongod", port_of(address))

    @classmethod
    def of(cls, cluster: TestCluster) -> Self:
        """Return those of a cluster, including the config server's."""
        return cls({**cluster.shards, "config": cluster.configdb})

    def moment(self) -> Moment:
        """Read the counters of all members."""
        counts, newest = {}, Timestamp(0, 0)
        for name, client in self._clients.items():
            status = client.admin.command("serverStatus")
            newest = max(newest, status["$clusterTime"]["clusterTime"])
            counts[name] = {
                "cpu": cpu_seconds(self.pids[name]) * 1e3,
                "get_mores": status["opcounters"]["getmore"],
                "connections": status["connections"]["current"],
            }
        return Moment(time.perf_counter(), newest, counts)

    def between(self, before: Moment, after: Moment) -> dict[str, dict[str, float]]:
        """Return each member's activity between two moments.

        The keys are ``cpu`` in ms, ``get_mores``, ``noop_writes`` and their ``noop_bytes`` in the
        oplog, each a second. The periodic no-ops that a primary writes by itself do not count.
        """
        seconds = after.at - before.at
        by_member = {}
        for name, client in self._clients.items():
            first, last = before.counts[name], after.counts[name]
            writes, size = _noop_writes(client, before.time, after.time)
            grown = {each: (last[each] - first[each]) / seconds for each in ("cpu", "get_mores")}
            noops = {"noop_writes": writes / seconds, "noop_bytes": size / seconds}
            by_member[name] = {**grown, **noops}
        return by_member


def _noop_writes(
    client: MongoClient[dict[str, Any]], first: Timestamp, last: Timestamp
) -> tuple[int, int]:
    pipeline: list[dict[str, Any]] = [
        {"$match": {"ts": {"$gt": first, "$lte": last}, "op": "n"}},
        {"$match": {"o.msg": {"$ne": "periodic noop"}}},
        {"$group": {"_id": None, "writes": {"$sum": 1}, "size": {"$sum": {"$bsonSize": "$$ROOT"}}}},
    ]
    for totals in client.local["oplog.rs"].aggregate(pipeline):
        return totals["writes"], totals["size"]
    return 0, 0
