"""Figures and findings that metrics, page and readiness derive from a status."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from bson.timestamp import Timestamp

from router.admin.sources import RouterStatus
from shard_client.error_codes import ErrorCode


def earliest_place(processes: Iterable[Mapping[str, Any]], place: str) -> Timestamp | None:
    """Return the earliest place over all processes; ``place`` is "cursor" or "departed"."""
    places = [each["places"][place] for each in processes]
    return min((each for each in places if each is not None), default=None)


def seconds_left(check: Mapping[str, Any], place: Timestamp) -> float:
    """Return the seconds of oplog between its oldest entry and ``place``; inf if complete."""
    return inf if check["complete"] else float(place.time - check["oldest"].time)


def error_name(code: int) -> str:
    """Return the name of an error code, or the number where the router knows no name."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def router_problems(status: RouterStatus) -> list[str]:
    """Return the problems for which clients cannot be served, without those of single shards."""
    problems = []
    if len(status.processes) < status.expected:
        problems.append(f"{len(status.processes)} of {status.expected} workers answer")
    if any(each["quiescing"] for each in status.processes):
        problems.append("the router is shutting down")
    if not status.server_checks:
        problems.append("the config server has not been checked yet")
    return problems + [
        _line(check)
        for check in status.server_checks
        if check["problem"] is not None and not check["serves"] and not _is_shard(check)
    ]


def shard_problems(status: RouterStatus) -> list[str]:
    """Return a line for each shard that does not answer."""
    return [
        _line(check)
        for check in status.server_checks
        if check["problem"] is not None and _is_shard(check)
    ]


def warnings(status: RouterStatus) -> list[str]:
    """Return the problems in spite of which clients can be served."""
    return [
        _line(check)
        for check in status.server_checks
        if check["problem"] is not None and check["serves"]
    ]


def _line(check: Mapping[str, Any]) -> str:
    return f"{check['subject']} {check['problem']}"


def _is_shard(check: Mapping[str, Any]) -> bool:
    return check["target"] not in (None, "config")
