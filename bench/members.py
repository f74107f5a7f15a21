"""The counters of real servers' members: CPU, getMores, connections and no-op writes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bson import Timestamp
from pymongo import MongoClient

from bench.kernel import cpu_of, cpu_seconds, listening
from bench.programs import Program, port_of
from tests.harness.clusters import TestCluster

_MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Moment:
    """The counters of all members at one moment, by member.

    They are ``cpu`` in ms, ``get_mores`` so far, and open ``connections``. ``at`` is
    ``time.perf_counter()``; ``time`` is the newest cluster time of any member.
    """

    at: float
    time: Timestamp
    counts: dict[str, dict[str, float]]


class Members:
    """The primaries of real servers, by the host strings of their sets."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self._clients: dict[str, MongoClient[dict[str, Any]]] = {}
        self._pids: dict[str, int] = {}
        for name, host in hosts.items():
            address = host.partition("/")[2]
            self._clients[name] = MongoClient(f"mongodb://{address}/?directConnection=true")
            self._pids[name] = listening("mongod", port_of(address))

    @property
    def pids(self) -> list[int]:
        """The process ids of the members."""
        return list(self._pids.values())

    @classmethod
    def of(cls, cluster: TestCluster) -> "Members":
        """Return those of a cluster, including the config server's."""
        return cls({**cluster.shards, "config": cluster.configdb})

    def cost_of_writes(
        self,
        write: Callable[[], None],
        count: int,
        others: Mapping[str, int],
        watching: Program | None = None,
    ) -> dict[str, float]:
        """Call ``write``; return the CPU that each of its ``count`` writes has taken.

        The writes are over when ``watching`` prints its next line, as its streams have all events.

        Args:
            write: makes the writes.
            count: the number of writes.
            others: further processes whose CPU is counted, by name.
            watching: the process that watches the writes; None if there is none.

        Returns:
            µs a write of all members (``shards``) and of each of ``others``, and ``seconds``, the
            time that all of it took.
        """
        processes = {"shards": self.pids, **{name: [pid] for name, pid in others.items()}}
        before, begun = cpu_of(processes), time.perf_counter()
        write()
        if watching is not None:
            watching.line()
        after, took = cpu_of(processes), time.perf_counter() - begun
        used = {name: (after[name] - before[name]) / count * _MICRO for name in after}
        return {"seconds": took, **used}

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def moment(self) -> Moment:
        """Read the counters of all members."""
        counts, newest = {}, Timestamp(0, 0)
        for name, client in self._clients.items():
            status = client.admin.command("serverStatus")
            newest = max(newest, status["$clusterTime"]["clusterTime"])
            counts[name] = {
                "cpu": cpu_seconds(self._pids[name]) * 1e3,
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
