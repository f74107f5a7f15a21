"""What the status page and ``mergerouter status`` show, as values of JSON; the last minutes."""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from math import isinf
from typing import Any, Final

from router.admin.router_status import RouterStatus
from router.catalog.shard_list import CONFIG

SAMPLE_INTERVAL = 5.0
"""Seconds between two samples."""

_MOST_SAMPLES = 120


@dataclass(frozen=True, slots=True)
class Sample:
    """The router at one time; ``lags`` are in seconds by target, counts are since the start."""

    at: datetime
    lags: Mapping[str, float]
    received: int
    delivered: int
    slowest: str | None


class History:
    """The samples of the last ten minutes, oldest first."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)

    def add(self, sample: Sample | None) -> None:
        """Append a sample, if any, unless the last one is younger than half an interval."""
        last = self._samples[-1].at if self._samples else None
        if sample is None:
            return
        if last is None or (sample.at - last).total_seconds() >= SAMPLE_INTERVAL / 2:
            self._samples.append(sample)

    def lags(self, target: str) -> tuple[float | None, ...]:
        """Return a target's lag in each sample; None where nothing read it."""
        return tuple(sample.lags.get(target) for sample in self._samples)

    def holds_since(self, target: str, now: datetime) -> float:
        """Return for how many seconds the target has been the one farthest behind."""
        since = now
        for sample in reversed(self._samples):
            if sample.slowest != target:
                break
            since = sample.at
        return (now - since).total_seconds()

    def rates(self, name: str) -> list[float]:
        """Return the growth of the count ``name`` a second, between each two samples."""
        return [
            # A worker that restarts begins at 0.
            max(0.0, getattr(after, name) - getattr(before, name))
            / max(0.001, (after.at - before.at).total_seconds())
            for before, after in pairwise(self._samples)
        ]


def sample_of(status: RouterStatus) -> Sample | None:
    """Return the sample of a status; None if no process answered."""
    total, lags = status.total, status.lags
    if not total:
        return None
    members = total["status"]["mergerouter"]["members"].items()
    received = sum(load["events"] for target, load in members if target != CONFIG)
    slowest = max(lags, key=lambda target: lags[target]) if lags else None
    return Sample(total["now"], lags, received, total["delivered"]["events"], slowest)


_LEAST_SPAN: Final = 10.0
"""Minimum number of seconds that the lanes show: idle shards write to their oplogs that often."""

_MOST_FAILURES: Final = 50
_TROUBLING_LAG: Final = 20.0
"""Seconds of lag that no quiet member has: it writes a no-op every 10 s by itself."""

_TROUBLING_UNREAD: Final = 60.0
"""Seconds for which a client that works leaves no event unread."""

_SILENT_JOB: Final = 60.0
"""Seconds after which a job that does not report is in trouble: it reports every 10 s."""


def status_view(status: RouterStatus, history: History) -> dict[str, Any] | None:
    """Return the view of a status collected with details; None if no process answered.

    ``span`` is the number of seconds that the lanes show. ``other_bytes`` are what
    ``buffered_bytes`` has beside the listed streams: looked-up documents, requests, and streams
    beyond those that are listed. ``history`` has the last minutes, up to the status.
    """
    sample = sample_of(status)
    if sample is None:
        return None
    total, now = status.total, sample.at
    server = total["status"]
    checks = status.checks.items()
    unusable = [
        target for target, check in checks if target != CONFIG and not check.get("usable", True)
    ]
    streams = [_stream_row(stream, unusable) for stream in total["streams"]]
    members = server["mergerouter"]["members"]
    held = total["heldBytes"]
    span = max([_LEAST_SPAN, *(lag * 1.1 for lag in sample.lags.values())])
    return {
        "host": str(server["host"]),
        "version": version("mergerouter"),
        "mongodb_version": str(server["version"]),
        "time": now.astimezone(UTC).isoformat(timespec="seconds"),
        "uptime": int((now - total["started"]).total_seconds()),
        "workers": len(status.processes),
        "workers_expected": status.expected,
        "problems": [
            *status.router_problems(),
            # Their lanes have the causes.
            *(f"{target} cannot be read" for target in unusable),
        ],
        "connections": server["connections"]["current"],
        "cursors": total["cursors"],
        "streams": server["mergerouter"]["differentStreams"],
        "waiting": total["waitingStreams"],
        "received_events": sample.received,
        "delivered_events": sample.delivered,
        "received_rates": history.rates("received"),
        "delivered_rates": history.rates("delivered"),
        "buffered_bytes": held,
        "other_bytes": max(0, held - sum(row["heldBytes"] for row in streams)),
        "buffer_limit_bytes": total["bufferLimitBytes"],
        "cpu_seconds": total["cpuTime"],
        "resident_bytes": total["residentBytes"],
        "span": span,
        "lanes": list(_lanes(status, span, history)),
        "stream_rows": streams,
        "client_rows": total["cursorList"],
        "troubling_unread": _TROUBLING_UNREAD,
        "job_rows": _job_rows(total, now),
        "members": {target: members[target] for target in _sorted(members)},
        "errors": dict(sorted(total["errors"].items(), key=lambda each: -each[1])),
        "failures": list(_failures(status)),
    }


def _lanes(status: RouterStatus, span: float, past: History) -> Iterator[dict[str, Any]]:
    """Yield a lane for each replica set: how far its events are known, and what holds it back.

    ``lag`` is in seconds, None while no stream reads it. ``reached`` is the lag's place on the
    lane, from 0 (the span's begin) to 1 (now). ``holds`` maps reasons to the number of streams
    whose low watermark it holds, ``holds_for`` is for how many seconds it has been the one farthest
    behind. ``trouble`` is whether somebody should look at it: it cannot be read, reconnects, or is
    farther behind than a quiet member is between two no-ops of its own. ``lags`` are its lags in
    the last minutes, oldest first. ``history`` is the number of seconds of oplog left for the
    client that is farthest behind; None if unknown or without limit. ``error`` is why it cannot be
    read.
    """
    checks, lags, histories = status.checks, status.lags, status.history_left("cursor")
    targets = status.total["targets"]
    unread = {"cursors": 0, "failing": 0, "held": {}}
    for target in _sorted({**checks, **targets}):
        sums, lag = targets.get(target, unread), lags.get(target)
        unusable = not checks.get(target, {}).get("usable", True)
        history = histories.get(target)
        yield {
            "target": target,
            "lag": lag,
            "reached": 0.0 if lag is None else max(0.0, 1 - lag / span),
            "holds": sums["held"],
            "cursors": sums["cursors"],
            "failing": sums["failing"],
            "history": None if history is None or isinf(history) else history,
            "error": str(checks[target]["text"]) if unusable else None,
            "trouble": unusable or sums["failing"] > 0 or (lag or 0.0) > _TROUBLING_LAG,
            "holds_for": past.holds_since(target, status.total["now"]),
            "lags": past.lags(target),
        }


def _sorted(targets: Mapping[str, Any]) -> list[str]:
    """Return the names of replica sets, the config server first."""
    return sorted(targets, key=lambda name: (name != CONFIG, name))


def _stream_row(stream: Mapping[str, Any], unusable: Sequence[str]) -> dict[str, Any]:
    """Return what a stream reports, without its remotes but with their failures.

    ``unusable`` are the shards whose lanes have the error.
    """
    remotes = stream["remotes"]
    return {
        **{name: value for name, value in stream.items() if name not in ("cursorIds", "remotes")},
        "clients": len(stream["cursorIds"]),
        "reopened": sum(remote["reopened"] for remote in remotes),
        "errors": [
            f"{remote['target']}: {remote['error']}"
            for remote in remotes
            if "error" in remote and remote["target"] not in unusable
        ],
    }


def _job_rows(total: Mapping[str, Any], now: datetime) -> list[dict[str, Any]]:
    """Return the newest report of each job, of all processes; those in trouble come first."""
    reports = sorted(total["jobs"], key=lambda each: each["arrived"])
    newest = {(report["owner"], report["namespace"], report["job"]): report for report in reports}
    rows = [_job_row(report, now) for report in newest.values() if not report["ended"]]
    return sorted(rows, key=lambda row: (not row["trouble"], row["job"], row["owner"]))


def _job_row(report: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Return what a job says of itself; ``lag`` and ``age``, that of its last report, in seconds.

    ``rate`` is its events a second in the last minute. ``waits`` is whether its stream stands
    still, because it waits for a shard. ``trouble`` is whether somebody should look at the job: it
    has failed, or reports no more.
    """
    age = max(0.0, (now - report["arrived"]).total_seconds())
    through = report["through"]
    copied = ("job", "owner", "namespace", "batch", "rate", "waits", "error")
    return {
        **{name: report[name] for name in copied},
        "lag": None if through is None else max(0.0, now.timestamp() - through.time),
        "age": age,
        "trouble": report["error"] is not None or age > _SILENT_JOB,
    }


def _failures(status: RouterStatus) -> Iterator[dict[str, str]]:
    """Yield the latest warnings and errors of all processes, the newest first."""
    lines = [*status.failures, *status.total["failures"]]
    parsed = sorted(map(json.loads, lines), key=lambda line: str(line["t"]["$date"]))
    for line in parsed[: -_MOST_FAILURES - 1 : -1]:
        attributes = line.get("attr", {})
        yield {
            "time": str(line["t"]["$date"])[:19].replace("T", " "),
            "severity": line["s"],
            "context": line["ctx"],
            "message": line["msg"],
            "attributes": ", ".join(f"{name}: {value}" for name, value in attributes.items()),
        }
