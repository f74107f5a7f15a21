"""The members of real servers: what writes cost them, and what a way to watch does."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import mean
from typing import Any

from bson import Timestamp
from pymongo import MongoClient

from bench.processes import Program, cpu_seconds, listening, port_of, results_of, started
from bench.writes import percentiles
from tests.harness.clusters import TestCluster

_MICRO = 1e6
_numbers = count(0, 1_000_000)
"""The number of each writer's first document."""


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
        before, begun = self._cpu_beside(others), time.perf_counter()
        write()
        if watching is not None:
            watching.line()
        after, took = self._cpu_beside(others), time.perf_counter() - begun
        used = {name: (after[name] - before[name]) / count * _MICRO for name in after}
        return {"seconds": took, **used}

    def _cpu_beside(self, others: Mapping[str, int]) -> dict[str, float]:
        """Return the CPU seconds that all members (``shards``) and other processes have used."""
        members = sum(map(cpu_seconds, self.pids))
        return {"shards": members, **{name: cpu_seconds(pid) for name, pid in others.items()}}

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

        The keys are ``cpu`` in ms, ``get_mores``, ``notes`` and ``note_bytes``, each a second.
        Notes are the oplog's no-op entries, except the periodic ones that a primary writes by
        itself.
        """
        seconds = after.at - before.at
        by_member = {}
        for name, client in self._clients.items():
            first, last = before.counts[name], after.counts[name]
            notes, size = _notes(client, before.time, after.time)
            grown = {
                figure: (last[figure] - first[figure]) / seconds for figure in ("cpu", "get_mores")
            }
            by_member[name] = {**grown, "notes": notes / seconds, "note_bytes": size / seconds}
        return by_member


def _notes(
    client: MongoClient[dict[str, Any]], first: Timestamp, last: Timestamp
) -> tuple[int, int]:
    pipeline: list[dict[str, Any]] = [
        {"$match": {"ts": {"$gt": first, "$lte": last}, "op": "n"}},
        {"$match": {"o.msg": {"$ne": "periodic noop"}}},
        {"$group": {"_id": None, "notes": {"$sum": 1}, "size": {"$sum": {"$bsonSize": "$$ROOT"}}}},
    ]
    for totals in client.local["oplog.rs"].aggregate(pipeline):
        return totals["notes"], totals["size"]
    return 0, 0


@dataclass(frozen=True, slots=True)
class Way:
    """One way to watch.

    Args:
        name: its name in the tables.
        port: the port that the clients connect to, None to watch nothing.
        pid: the process that serves them, None if no process but the members' does.
    """

    name: str
    port: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The writes of a measurement: ``rate`` documents a second to each of ``shards``."""

    name: str
    shards: Sequence[int] = ()
    rate: float = 0.0


def observe(
    uri: str,
    members: Members,
    way: Way,
    load: Load,
    seconds: float,
    *,
    clients: int = 1,
    distinct: bool = False,
    settle: float = 1.0,
    patience: float = 0.0,
) -> dict[str, Any]:
    """Watch ``way`` for some seconds under ``load``; return its costs and the events' latency.

    Args:
        uri: what the writes go through.
        members: whose counters run.
        way: how to watch.
        load: what is written meanwhile.
        seconds: how long the counters run.
        clients: how many clients watch.
        distinct: whether each has a filter of its own, which all documents pass.
        settle: seconds before the counters run.
        patience: seconds to continue after the last write, until its event arrives.
    """
    watch = ["--clients", str(clients), "--watch", "distinct" if distinct else "equal"]
    shards = ["--shards", *map(str, load.shards), "--rate", str(load.rate)]
    with contextlib.ExitStack() as stack:
        before_all = members.moment()
        watchers, writer = None, None
        if way.port is not None:
            watchers = stack.enter_context(started("bench.watchers", str(way.port), *watch))
        if load.rate:
            first = ("--first", str(next(_numbers)))
            writer = stack.enter_context(started("bench.writes", uri, *shards, *first))
        time.sleep(settle)
        used, before = cpu_seconds(way.pid) if way.pid else 0.0, members.moment()
        time.sleep(seconds)
        after, used = members.moment(), cpu_seconds(way.pid) - used if way.pid else 0.0
        acknowledged = results_of([writer])[0] if writer else {}
        time.sleep(patience)
        arrived = results_of([watchers])[0]["arrivals"] if watchers else {}
    each = members.between(before, after)
    of_shards = [figures for name, figures in each.items() if name != "config"]
    late = [arrived[key] - at for key, at in acknowledged.items() if key in arrived]
    return {
        "load": load.name,
        "way": way.name,
        "clients": clients,
        "cpu": used / (after.at - before.at) * 1e3 if way.pid else None,
        "members_cpu": sum(figures["cpu"] for figures in each.values()),
        "notes": mean(figures["notes"] for figures in of_shards),
        "config_notes": each["config"]["notes"] if "config" in each else None,
        "note_bytes": max(figures["note_bytes"] for figures in each.values()) * 86_400 / 1e6,
        "get_mores": mean(figures["get_mores"] for figures in of_shards),
        "connections": max(
            last["connections"] - before_all.counts[name]["connections"]
            for name, last in before.counts.items()
        ),
        **(percentiles(late) if late else {}),
    }
