"""Watchers and writers beside real servers: the cost of a way to watch, and the events' latency."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import mean, quantiles
from typing import Any

from bench.members import Members
from bench.processes import cpu_seconds
from bench.program import Program, results_of

_numbers = count(0, 1_000_000)
"""The number of each writer's first document."""


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
        uri: the URI of the mongos that the writes go through.
        members: the cluster's members.
        way: how to watch.
        load: what is written meanwhile.
        seconds: how long the counters run.
        clients: how many clients watch.
        distinct: whether each has a filter of its own, which all documents pass.
        settle: seconds before the counters run.
        patience: seconds to continue after the last write, until its event arrives.
    """
    with contextlib.ExitStack() as stack:
        before_all = members.moment()
        watchers = stack.enter_context(_watchers(way, clients, distinct=distinct))
        writer = stack.enter_context(_writer(uri, load))
        time.sleep(settle)
        used, before = _cpu(way), members.moment()
        time.sleep(seconds)
        after, used = members.moment(), _cpu(way) - used
        acknowledged = _finish(writer)
        time.sleep(patience)
        got = _finish(watchers)
    each = members.between(before, after)
    took = after.at - before.at
    shards = [figures for name, figures in each.items() if name != "config"]
    result: dict[str, Any] = {
        "load": load.name,
        "way": way.name,
        "clients": clients,
        "cpu": used / took * 1e3 if way.pid else None,
        "members_cpu": sum(figures["cpu"] for figures in each.values()),
        "notes": mean(figures["notes"] for figures in shards),
        "most_notes": max(figures["notes"] for figures in each.values()),
        "config_notes": each["config"]["notes"],
        "note_bytes": max(figures["note_bytes"] for figures in each.values()) * 86_400 / 1e6,
        "get_mores": mean(figures["get_mores"] for figures in shards),
        "connections": max(
            last.connections - before_all.counts[name].connections
            for name, last in before.counts.items()
        ),
    }
    if got and acknowledged:
        result |= _latency(acknowledged, got["arrived"])
        events = len(got["arrived"]) * clients
        rate = load.rate * len(load.shards)
        result["cpu_event"] = used / took / rate * 1e3 if way.pid else None
        result["events"] = events
    return result


def _latency(acknowledged: dict[str, float], arrived: dict[str, float]) -> dict[str, Any]:
    late = [arrived[key] - at for key, at in acknowledged.items() if key in arrived]
    if len(late) < 2:
        return {"writes": len(acknowledged), "missing": len(acknowledged) - len(late)}
    shares = quantiles(late, n=100, method="inclusive")
    return {
        "writes": len(acknowledged),
        "missing": len(acknowledged) - len(late),
        "p50": shares[49] * 1e3,
        "p99": shares[98] * 1e3,
        "most": max(late) * 1e3,
    }


def _cpu(way: Way) -> float:
    return cpu_seconds(way.pid) if way.pid is not None else 0.0


@contextlib.contextmanager
def _watchers(way: Way, clients: int, *, distinct: bool) -> Iterator[Program | None]:
    if way.port is None:
        yield None
        return
    flags = ["--watch", "distinct"] if distinct else []
    arguments = ["bench.live_watchers", str(way.port), "--clients", str(clients), *flags]
    with _program(*arguments) as process:
        yield process


@contextlib.contextmanager
def _writer(uri: str, load: Load) -> Iterator[Program | None]:
    if not load.rate:
        yield None
        return
    arguments = ["bench.paced_writes", uri, "--shards", *map(str, load.shards)]
    with _program(*arguments, "--rate", str(load.rate), "--first", str(next(_numbers))) as process:
        yield process


@contextlib.contextmanager
def _program(module: str, *arguments: str) -> Iterator[Program]:
    """Run a module that prints a line when ready and ends when a line arrives on its stdin."""
    with Program(module, *arguments) as process:
        process.line()
        yield process


def _finish(process: Program | None) -> dict[str, Any]:
    """Stop a program and return the JSON that it prints."""
    if process is None:
        return {}
    return results_of([process])[0]
