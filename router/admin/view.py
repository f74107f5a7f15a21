"""The contents of the status page and of ``mergerouter status``, as plain values."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from math import isinf
from typing import Any, Final

from bson.timestamp import Timestamp

from router.admin.figures import (
    earliest_place,
    error_name,
    router_problems,
    seconds_left,
)
from router.admin.history import History, sample_of
from router.admin.sources import RouterStatus

_CONFIG: Final = "config"
_LEAST_SPAN: Final = 10.0
"""Minimum number of seconds that the lanes show: idle shards write to their oplogs that often."""

_MOST_FAILURES: Final = 50
_TROUBLING_LAG: Final = 20.0
"""Seconds of lag that no quiet member has: it writes a no-op every 10 s by itself."""

_SILENT_JOB: Final = 60.0
"""Seconds after which a job that does not report is in trouble: it reports every 10 s."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One replica set: how far its events are known, and what holds it back.

    ``lag`` is in seconds, None while no stream reads it. ``reached`` is the lag's place on the
    lane, from 0 (the span's begin) to 1 (now). ``holds`` maps reasons to the number of streams
    whose low watermark it holds, ``holds_for`` is for how many seconds it has been the one farthest
    behind. ``trouble`` is whether somebody should look at it: it does not answer, reconnects, or is
    farther behind than a quiet member is between two no-ops of its own. ``lags`` are its lags in
    the last minutes, oldest first. ``history`` is the number of seconds of oplog left for the
    client that is farthest behind; None if unknown or without limit. ``error`` is why it does not
    answer.
    """

    target: str
    lag: float | None
    reached: float
    holds: Mapping[str, int]
    cursors: int
    failing: int
    buffered_bytes: int
    history: float | None
    error: str | None
    trouble: bool
    holds_for: float
    lags: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One set of remote cursors and the number of clients that share it."""

    worker: int
    namespace: str
    readers: int
    events: int
    buffered_bytes: int
    held_bytes: int
    slowest_remote: str | None
    slowest_reason: str | None
    waiting: bool
    reopened: int
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One client's cursor; ``lag`` and ``idle`` are in seconds."""

    worker: int
    client: str
    namespace: str
    lag: float
    idle: float
    busy: bool


@dataclass(frozen=True, slots=True)
class JobRow:
    """What a job says of itself; ``lag`` and ``age``, that of its last report, are in seconds.

    ``rate`` is its events a second in the last minute. ``idle`` is whether it waits for further
    events, so that ``lag`` is the age of the last one. ``trouble`` is whether somebody should look
    at it: it has failed, or reports no more.
    """

    job: str
    owner: str
    namespace: str
    batch: int | None
    lag: float | None
    rate: float | None
    idle: bool
    error: str | None
    age: float
    trouble: bool


@dataclass(frozen=True, slots=True)
class MemberRow:
    """The commands sent to one replica set, and the events that it returned."""

    target: str
    events: int
    get_mores: int
    openings: int
    reopenings: int
    noop_commands: int
    noop_writes: int


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One warning or error of the log."""

    time: str
    severity: str
    context: str
    message: str
    attributes: str


@dataclass(frozen=True, slots=True)
class StatusView:
    """The whole status; ``span`` is the number of seconds that the lanes show.

    ``other_bytes`` are what ``buffered_bytes`` has beside the listed streams: looked-up documents,
    requests, and streams beyond those that are listed.
    """

    host: str
    version: str
    mongodb_version: str
    time: str
    uptime: int
    workers: int
    workers_expected: int
    problems: tuple[str, ...]
    connections: int
    cursors: int
    streams: int
    waiting: int
    received_events: int
    delivered_events: int
    received_rates: tuple[float, ...]
    delivered_rates: tuple[float, ...]
    buffered_bytes: int
    other_bytes: int
    buffer_limit_bytes: int
    cpu_seconds: float
    resident_bytes: int
    span: float
    lanes: tuple[Lane, ...]
    stream_rows: tuple[StreamRow, ...]
    client_rows: tuple[ClientRow, ...]
    job_rows: tuple[JobRow, ...]
    member_rows: tuple[MemberRow, ...]
    errors: Mapping[str, int]
    failures: tuple[FailureRow, ...]

    @classmethod
    def of(cls, status: RouterStatus, history: History | None = None) -> "StatusView | None":
        """Return the view of a status collected with details; None if no process answered.

        ``history`` has the last minutes; the status is added to it.
        """
        processes = status.processes
        sample = sample_of(status)
        if sample is None:
            return None
        past = History() if history is None else history
        past.add(sample)
        first = processes[0]["status"]
        now = max(each["now"] for each in processes)
        started = min(each["started"] for each in processes)
        members = tuple(_member_rows(status))
        lags = sample.lags
        streams = tuple(_stream_rows(status))
        held = sum(each["heldBytes"] for each in processes)
        span = max([_LEAST_SPAN, *(lag * 1.1 for lag in lags.values())])
        errors: Counter[str] = Counter()
        for each in processes:
            errors.update(each["errors"])
        return cls(
            host=str(first["host"]),
            version=version("mergerouter"),
            mongodb_version=str(first["version"]),
            time=now.astimezone(UTC).isoformat(timespec="seconds"),
            uptime=int((now - started).total_seconds()),
            workers=len(processes),
            workers_expected=status.expected,
            problems=(
                *router_problems(status),
                # Their lanes have the causes.
                *(f"{target} does not answer" for target in _silent(status)),
            ),
            connections=sum(each["status"]["connections"]["current"] for each in processes),
            cursors=sum(each["cursors"] for each in processes),
            streams=sum(each["status"]["mergerouter"]["differentStreams"] for each in processes),
            waiting=sum(each["waitingStreams"] for each in processes),
            received_events=sum(row.events for row in members if row.target != _CONFIG),
            delivered_events=sum(each["delivered"]["events"] for each in processes),
            received_rates=past.received(),
            delivered_rates=past.delivered(),
            buffered_bytes=held,
            other_bytes=max(0, held - sum(row.held_bytes for row in streams)),
            buffer_limit_bytes=sum(each["bufferLimitBytes"] for each in processes),
            cpu_seconds=sum(each["cpuSeconds"] for each in processes),
            resident_bytes=sum(each["residentBytes"] for each in processes),
            span=span,
            lanes=tuple(_lanes(status, lags, span, past, now)),
            stream_rows=streams,
            client_rows=tuple(_client_rows(status, now)),
            job_rows=tuple(_job_rows(status, now)),
            member_rows=members,
            errors={error_name(int(code)): count for code, count in errors.most_common()},
            failures=tuple(_failures(status)),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the view as values of JSON."""
        return asdict(self)


def _lanes(
    status: RouterStatus, lags: Mapping[str, float], span: float, past: History, now: datetime
) -> Iterator[Lane]:
    checks = status.checks
    sums: dict[str, Counter[str]] = {}
    holds: dict[str, Counter[str]] = {}
    for process in status.processes:
        for target, each in process["targets"].items():
            numbers = {name: each[name] for name in ("cursors", "failing", "bufferedBytes")}
            sums.setdefault(target, Counter()).update(numbers)
            holds.setdefault(target, Counter()).update(each["held"])
    place = earliest_place(status.processes, "cursor")
    for target in sorted({*checks, *sums}, key=lambda name: (name != _CONFIG, name)):
        check = checks.get(target, {})
        lag = lags.get(target)
        known = check.get("oldest") is not None and place is not None and target != _CONFIG
        history = seconds_left(check, place) if known and place is not None else None
        total = sums.get(target, Counter())
        yield Lane(
            target=target,
            lag=lag,
            reached=0.0 if lag is None else max(0.0, 1 - lag / span),
            holds=dict(holds.get(target, {})),
            cursors=total["cursors"],
            failing=total["failing"],
            buffered_bytes=total["bufferedBytes"],
            history=None if history is None or isinf(history) else history,
            error=(
                None
                if check.get("answers", True)
                else str(check["problem"]).removeprefix("does not answer: ")
            ),
            trouble=(
                not check.get("answers", True)
                or total["failing"] > 0
                or (lag is not None and lag > _TROUBLING_LAG)
            ),
            holds_for=past.holds_since(target, now),
            lags=past.lags(target),
        )


def _silent(status: RouterStatus) -> list[str]:
    """Return the shards that do not answer."""
    checks = status.checks.items()
    return [
        target for target, check in checks if target != _CONFIG and not check.get("answers", True)
    ]


def _stream_rows(status: RouterStatus) -> Iterator[StreamRow]:
    silent = _silent(status)  # whose lanes have the error
    for process in status.processes:
        for stream in process["streams"]:
            remotes = stream["remotes"]
            yield StreamRow(
                worker=process["worker"],
                namespace=stream["namespace"],
                readers=len(stream["cursorIds"]),
                events=stream["events"],
                buffered_bytes=stream["bufferedBytes"],
                held_bytes=stream.get("heldBytes", stream["bufferedBytes"]),
                slowest_remote=stream["slowestShard"],
                slowest_reason=stream["slowestReason"],
                waiting=stream["waiting"],
                reopened=sum(remote["reopened"] for remote in remotes),
                errors=tuple(
                    f"{each['target']}: {each['error']}"
                    for each in remotes
                    if "error" in each and each["target"] not in silent
                ),
            )


def _client_rows(status: RouterStatus, now: datetime) -> Iterator[ClientRow]:
    for process in status.processes:
        for cursor in process["cursorList"]:
            yield ClientRow(
                worker=process["worker"],
                client=cursor["client"] or "the feed",
                namespace=cursor["namespace"],
                lag=_age(cursor["place"], now),
                idle=cursor["idleSeconds"],
                busy=cursor["busy"],
            )


def _job_rows(status: RouterStatus, now: datetime) -> Iterator[JobRow]:
    """Yield the newest report of each job, of all processes; those in trouble come first."""
    reports = sorted(
        (each for process in status.processes for each in process["jobs"]),
        key=lambda each: each["arrived"],
    )
    newest = {(each["owner"], each["namespace"], each["job"]): each for each in reports}
    rows = [_job_row(each, now) for each in newest.values() if not each["ended"]]
    yield from sorted(rows, key=lambda row: (not row.trouble, row.job, row.owner))


def _job_row(report: Mapping[str, Any], now: datetime) -> JobRow:
    age = max(0.0, (now - report["arrived"]).total_seconds())
    return JobRow(
        job=report["job"],
        owner=report["owner"],
        namespace=report["namespace"],
        batch=report["batch"],
        lag=None if report["through"] is None else _age(report["through"], now),
        rate=report["rate"],
        idle=report["idle"],
        error=report["error"],
        age=age,
        trouble=report["error"] is not None or age > _SILENT_JOB,
    )


def _member_rows(status: RouterStatus) -> Iterator[MemberRow]:
    loads: dict[str, Counter[str]] = {}
    for process in status.processes:
        for target, load in process["status"]["mergerouter"]["members"].items():
            loads.setdefault(target, Counter()).update(load)
    for target in sorted(loads, key=lambda name: (name != _CONFIG, name)):
        load = loads[target]
        yield MemberRow(
            target=target,
            events=load["events"],
            get_mores=load["getMores"],
            openings=load["openings"],
            reopenings=load["reopenings"],
            noop_commands=load["noopCommands"],
            noop_writes=load["noopWrites"],
        )


def _failures(status: RouterStatus) -> Iterator[FailureRow]:
    """Yield the latest warnings and errors of all processes, the newest first."""
    lines = [*status.failures, *(line for each in status.processes for line in each["failures"])]
    parsed = sorted(map(json.loads, lines), key=lambda line: str(line["t"]["$date"]))
    for line in parsed[: -_MOST_FAILURES - 1 : -1]:
        attributes = line.get("attr", {})
        yield FailureRow(
            time=str(line["t"]["$date"])[:19].replace("T", " "),
            severity=line["s"],
            context=line["ctx"],
            message=line["msg"],
            attributes=", ".join(f"{name}: {value}" for name, value in attributes.items()),
        )


def _age(time: Timestamp, now: datetime) -> float:
    return max(0.0, now.timestamp() - time.time)
