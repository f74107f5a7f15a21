"""The last minutes of the router: each replica set's lag, and how many events passed."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from router.admin.sources import CONFIG, RouterStatus

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

    def add(self, sample: Sample) -> None:
        """Append a sample, unless it comes sooner than half an interval after the last one."""
        if self._samples:
            since = (sample.at - self._samples[-1].at).total_seconds()
            if since < SAMPLE_INTERVAL / 2:
                return
        self._samples.append(sample)

    def lags(self, target: str) -> tuple[float | None, ...]:
        """Return a target's lag in each sample; None where nothing read it."""
        return tuple(each.lags.get(target) for each in self._samples)

    def received(self) -> tuple[float, ...]:
        """Return the events received a second, between each two samples."""
        return tuple(self._rates("received"))

    def delivered(self) -> tuple[float, ...]:
        """Return the events delivered a second, between each two samples."""
        return tuple(self._rates("delivered"))

    def holds_since(self, target: str, now: datetime) -> float:
        """Return for how many seconds the target has been the one farthest behind."""
        since = now
        for each in reversed(self._samples):
            if each.slowest != target:
                break
            since = each.at
        return (now - since).total_seconds()

    def _rates(self, name: str) -> Iterator[float]:
        before: Sample | None = None
        for each in self._samples:
            if before is not None:
                seconds = max(0.001, (each.at - before.at).total_seconds())
                # A worker that restarts begins at 0.
                yield max(0.0, (getattr(each, name) - getattr(before, name)) / seconds)
            before = each


def sample_of(status: RouterStatus) -> Sample | None:
    """Return the sample of a status; None if no process answered."""
    total, lags = status.total, status.lags
    if not total:
        return None
    members = total["status"]["mergerouter"]["members"].items()
    received = sum(load["events"] for target, load in members if target != CONFIG)
    slowest = max(lags, key=lambda target: lags[target]) if lags else None
    return Sample(total["now"], lags, received, total["delivered"]["events"], slowest)
