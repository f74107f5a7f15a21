"""Reports of running jobs, for the status page.

A report is what a client says of itself. It is shown with the client's user and address, and
nothing else depends on it: no check, no metric, no stream.
"""

from collections import Counter
from dataclasses import field
from datetime import datetime
from functools import partial
from typing import Annotated, Final

from bson.timestamp import Timestamp
from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

MOST_REPORTS: Final = 100
"""Reports that a process keeps."""

KEPT_SECONDS: Final = 600.0
"""For how long a report is kept after it arrived."""

LONGEST_NAME: Final = 200
LONGEST_ERROR: Final = 500
"""Most characters that are kept of a job's name and of its error."""

_LARGEST: Final = 2**53
_Key = tuple[str, str, str]


def _plain(longest: int, value: str) -> str:
    """Return a text of a client without control characters, and not too long."""
    shown = value if len(value) <= longest else f"{value[: longest - 1]}…"
    return "".join(character if character.isprintable() else " " for character in shown)


_Name = Annotated[str, AfterValidator(partial(_plain, LONGEST_NAME))]
_Error = Annotated[str, AfterValidator(partial(_plain, LONGEST_ERROR))]
_Count = Annotated[int, Field(strict=True, ge=0), AfterValidator(partial(min, _LARGEST))]
_Rate = Annotated[
    float,
    Field(strict=True, allow_inf_nan=False),
    AfterValidator(lambda rate: min(max(0.0, rate), _LARGEST)),
]


@dataclass(frozen=True, slots=True, config=ConfigDict(arbitrary_types_allowed=True))
class JobReport:
    """What a job last said of itself; raises ValidationError if it said something else.

    ``owner`` is the client's user and address, ``namespace`` what the job follows, ``batch`` its
    last batch, ``through`` the cluster time up to which its tables have all events, ``rate`` its
    events a second in the last minute, and ``error`` why it failed; None where it did not say.
    ``waits`` is whether its stream stands still at ``through``, because it waits for a shard.
    ``ended`` is true of a job that was stopped, which is no longer shown.
    """

    job: _Name
    owner: str
    namespace: _Name
    arrived: datetime
    batch: _Count | None = None
    through: Timestamp | None = None
    rate: _Rate | None = None
    error: _Error | None = None
    waits: bool = False
    ended: bool = False


@dataclass(slots=True)
class JobReports:
    """The last report of each job, at most ``MOST_REPORTS``, each for ``KEPT_SECONDS``.

    One more replaces the oldest report of the owner that has the most, so that an owner cannot
    remove those of others.
    """

    _reports: dict[_Key, JobReport] = field(default_factory=dict)

    def add(self, report: JobReport) -> None:
        """Keep a report in the place of the job's previous one."""
        key = report.owner, report.namespace, report.job
        self._reports.pop(key, None)  # so that the dictionary is in the order of arrival
        self._reports[key] = report
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
