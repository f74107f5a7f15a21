"""Reports of running jobs, for the status page, and the command by which a job reports.

A report is what a client says of itself. It is shown with the client's user and address, and
nothing else depends on it: no check, no metric, no stream.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any, Final

from bson.timestamp import Timestamp

from router.access.authorization import require
from router.access.privileges import STREAM_ACTIONS, WHOLE, stream_resource
from router.commands.answer import Answer
from router.commands.call import Call, Command
from router.commands.fields import at_least_zero, check_known, text
from router.request.field_errors import wrong_type

COMMAND: Final = "mergerouterReportJob"

MOST_REPORTS: Final = 100
"""Reports that a process keeps."""

KEPT_SECONDS: Final = 600.0
"""For how long a report is kept after it arrived."""

LONGEST_NAME: Final = 200
LONGEST_ERROR: Final = 500
"""Most characters that are kept of a job's name and of its error."""

_LARGEST: Final = 2**53
_FIELDS = frozenset({"job", "batch", "through", "eventsPerSecond", "idle", "error", "ended"})

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job last said of itself.

    ``owner`` is the client's user and address, ``namespace`` what the job follows, ``batch`` its
    last batch, ``through`` the cluster time up to which its tables have all events, ``rate`` its
    events a second in the last minute, and ``error`` why it failed; None where it did not say.
    ``idle`` is whether it found no further events when it last looked. ``ended`` is true of a job
    that was stopped, which is no longer shown.
    """

    job: str
    owner: str
    namespace: str
    arrived: datetime
    batch: int | None = None
    through: Timestamp | None = None
    rate: float | None = None
    error: str | None = None
    idle: bool = False
    ended: bool = False

    @property
    def key(self) -> _Key:
        """What two reports of the same job have in common."""
        return self.owner, self.namespace, self.job

    def to_document(self) -> dict[str, Any]:
        """Return the report for the status."""
        return {
            "job": self.job,
            "owner": self.owner,
            "namespace": self.namespace,
            "arrived": self.arrived,
            "batch": self.batch,
            "through": self.through,
            "rate": self.rate,
            "error": self.error,
            "idle": self.idle,
            "ended": self.ended,
        }


@dataclass(slots=True)
class JobReports:
    """The last report of each job, at most ``MOST_REPORTS``, each for ``KEPT_SECONDS``.

    One more replaces the oldest report of the owner that has the most, so that an owner cannot
    remove those of others.
    """

    _reports: dict[_Key, JobReport] = field(default_factory=dict)

    def add(self, report: JobReport) -> None:
        """Keep a report in the place of the job's previous one."""
        self._reports.pop(report.key, None)  # so that the dictionary is in the order of arrival
        self._reports[report.key] = report
        self._expire(report.arrived)
        if len(self._reports) > MOST_REPORTS:
            owners = Counter(owner for owner, _, _ in self._reports)
            ((most, _count),) = owners.most_common(1)
            del self._reports[next(key for key in self._reports if key[0] == most)]

    def current(self, now: datetime) -> list[JobReport]:
        """Return the reports that have not expired, the oldest first."""
        self._expire(now)
        return [*self._reports.values()]

    def _expire(self, now: datetime) -> None:
        for key, report in [*self._reports.items()]:
            if (now - report.arrived).total_seconds() <= KEPT_SECONDS:
                break
            del self._reports[key]


async def report_job(call: Call) -> Answer:
    """Keep what a job says of itself, from a user who may open the job's stream.

    Raises:
        CommandError: 13, the user may not; 14, 40414, 40415 and others, a field is wrong.
    """
    command = call.command
    check_known(command, call.name, _FIELDS)
    target = command[call.name]
    collection = target if isinstance(target, str) else None
    if call.user is not None:
        resource = stream_resource(call.database, collection)
        require(call.user, resource, *STREAM_ACTIONS, database=call.database, command=command)
    owner = call.client.host
    call.node.jobs.add(
        JobReport(
            job=_plain(text(command, call.name, "job"), LONGEST_NAME),
            owner=owner if call.user_name is None else f"{call.user_name}, {owner}",
            namespace=_plain(f"{call.database}.{collection or WHOLE}", LONGEST_NAME),
            arrived=call.node.now(),
            batch=_batch(command, call.name),
            through=_through(command, call.name),
            rate=_rate(command, call.name),
            error=_error(command, call.name),
            idle=bool(command.get("idle")),
            ended=bool(command.get("ended")),
        )
    )
    return Answer({})


def _plain(value: str, longest: int) -> str:
    """Return a text of a client without control characters, and not too long."""
    shown = value if len(value) <= longest else f"{value[: longest - 1]}…"
    return "".join(each if each.isprintable() else " " for each in shown)


def _batch(command: Mapping[str, Any], name: str) -> int | None:
    number = at_least_zero(command, name, "batch")
    return None if number is None else min(number, _LARGEST)


def _error(command: Mapping[str, Any], name: str) -> str | None:
    if command.get("error") is None:
        return None
    return _plain(text(command, name, "error"), LONGEST_ERROR)


def _through(command: Mapping[str, Any], name: str) -> Timestamp | None:
    value = command.get("through")
    if value is not None and not isinstance(value, Timestamp):
        raise wrong_type(f"{name}.through", value, "timestamp")
    return value


def _rate(command: Mapping[str, Any], name: str) -> float | None:
    value = command.get("eventsPerSecond")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise wrong_type(f"{name}.eventsPerSecond", value, "double")
    return min(max(0.0, float(value)), _LARGEST)


COMMANDS = (Command((COMMAND,), report_job, "show a job on the router's status page"),)
