"""Reports of running jobs, for the status page.

A report is what a client says of itself. It is shown with the client's user and address, and
nothing else depends on it: no check, no metric, no stream.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from bson.timestamp import Timestamp

MOST_REPORTS: Final = 100
"""Reports that a process keeps."""

KEPT_SECONDS: Final = 600.0
"""For how long a report is kept after it arrived."""

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job last said of itself.

    ``owner`` is the client's user and address, ``namespace`` what the job follows, ``batch`` its
    last batch, ``through`` the cluster time up to which its tables have all events, ``rate`` its
    events a second in the last minute, and ``error`` why it failed; None where it did not say.
    ``waits`` is whether its stream stands still at ``through``, because it waits for a shard.
    ``ended`` is true of a job that was stopped, which is no longer shown.
    """

    job: str
    owner: str
    namespace: str
    arrived: datetime
    batch: int | None = None
    through: Timestamp | None = None
    rate: float | None = None
    error: str | None = None
    waits: bool = False
    ended: bool = False

    @property
    def key(self) -> _Key:
        """What two reports of the same job have in common."""
        return self.owner, self.namespace, self.job

    def to_document(self) -> dict[str, Any]:
        """Return the report for the status."""
        return asdict(self)


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
