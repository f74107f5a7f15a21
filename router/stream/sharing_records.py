"""What sharing remembers: the readers of each wider stream and whether they pay, and failures."""

from collections import Counter
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from router.stream.fan_out import Traffic
from shard_client.errors import RESUMABLE_LABEL, CommandError

_FRACTION_TO_STAY: Final = 0.5
"""A shared scan continues with few readers if they get at least this fraction of its events."""

_BYTES_OF_A_SCAN: Final = 2000
"""Bytes of an event that a shard sends for less than another scan of its oplog entry costs it
(docs/performance.md#streams-of-many-collections)."""

_PAUSE_IN_HOLDS: Final = 60
"""A scan that costs more than it saves is shared again after so many times ``hold``."""

MOST_PAUSED: Final = 1000
"""Maximum of paused scans that are remembered; those that were paused last are kept."""


class Scan:
    """A wider stream that clients could share: the readers of each part, and the parts' costs."""

    def __init__(self) -> None:
        self.parts: Counter[bytes] = Counter()
        self.cost = 0
        self.shared_until = -inf
        self.let_through = 0.0


class SharingDemand:
    """The different parts that clients read of each wider stream; does no I/O.

    A scan is shared from the ``least``-th part on, and no longer when there have been less than
    half as many for ``hold`` seconds, unless two or more get most of its events. It is paused when
    the shards send much more than the parts need, which costs more than the scans that it saves,
    and when the router has been behind for ``hold`` seconds with events that few readers get, since
    the shards can leave these out. All times are on the loop's clock.
    """

    def __init__(self, least: int, hold: float) -> None:
        self.least = least
        self._hold = hold
        self._scans: dict[bytes, Scan] = {}
        self._paused_until: dict[bytes, float] = {}

    def join(self, scan: bytes, part: bytes, now: float, *, cost: int = 0, begins: bool) -> None:
        """Count a reader of ``part``; ``begins`` is whether the count may begin the sharing.

        ``cost`` is the part's, the same for all of its readers.
        """
        state = self._scans.setdefault(scan, Scan())
        state.cost += 0 if part in state.parts else cost
        state.parts[part] += 1
        if begins and len(state.parts) >= self.least:
            state.shared_until = inf
        self._begin_or_end(state, now)

    def leave(self, scan: bytes, part: bytes, now: float, *, cost: int = 0) -> None:
        """Stop counting a reader."""
        state = self._scans[scan]
        state.parts[part] -= 1
        if not state.parts[part]:
            del state.parts[part]
            state.cost -= cost
        if state.parts:
            self._begin_or_end(state, now)
        else:
            del self._scans[scan]

    def record(self, scan: bytes, traffic: Traffic, now: float) -> None:
        """Record the recent traffic of a scan that is read and shared."""
        state = self._scans.get(scan)
        if state is None:
            return
        state.let_through = traffic.let_through
        costly = traffic.unwatched_bytes > len(state.parts) * _BYTES_OF_A_SCAN
        behind = traffic.behind_since is not None and traffic.behind_since <= now - self._hold
        late = behind and state.let_through < _FRACTION_TO_STAY
        if (costly or late) and self.is_shared(scan, now):
            self.pause(scan, now + _PAUSE_IN_HOLDS * self._hold)
            state.let_through = 0.0
        self._begin_or_end(state, now)

    def pause(self, scan: bytes, until: float) -> None:
        """Do not share the scan for a while."""
        self._paused_until.pop(scan, None)
        self._paused_until[scan] = until
        if len(self._paused_until) > MOST_PAUSED:
            del self._paused_until[next(iter(self._paused_until))]

    def _begin_or_end(self, state: Scan, now: float) -> None:
        """Begin or end the time for which a scan with few parts is shared on."""
        count = len(state.parts)
        few = count * 2 < self.least
        if few and (count < 2 or state.let_through < _FRACTION_TO_STAY):
            state.shared_until = min(state.shared_until, now + self._hold)
        elif now < state.shared_until:
            state.shared_until = inf

    def of(self, scan: bytes) -> Scan:
        """Return what is counted of a scan, which may have no readers."""
        return self._scans.get(scan) or Scan()

    def is_shared(self, scan: bytes, now: float) -> bool:
        """Return whether the parts of a scan should share it."""
        return now < self.of(scan).shared_until and not self.is_paused(scan, now)

    def is_paused(self, scan: bytes, now: float) -> bool:
        """Return whether the scan has cost more than it saved, and is not shared for a while."""
        return now < self._paused_until.get(scan, -inf)


FIRST_PAUSE: Final = 10.0
"""Seconds for which clients avoid a shared stream after its first failure."""

LONGEST_PAUSE: Final = 3600.0
"""Upper bound of the pause, which doubles with each failure, in seconds."""

MOST_FAILED: Final = 1000
"""Maximum of failed streams that are remembered; the latest to fail are kept."""


@dataclass(slots=True)
class _Failure:
    code_name: str
    at: float
    until: float


class FailedStreams:
    """Remembers for a while which shared streams have failed; does no I/O.

    An event that most of its clients would not receive may end a shared stream, and the next such
    event would end it again. Clients read streams of their own meanwhile, and do not enter it for a
    time that doubles with each failure. It is reset after ``LONGEST_PAUSE`` without one. A
    resumable error, such as a shard's outage, does not double it: it says nothing about events.
    Streams are named by their keys (``Source.key``); all times are on the loop's clock.
    """

    def __init__(self) -> None:
        self._failures: dict[bytes, _Failure] = {}

    def add(self, key: bytes, error: CommandError, entered: float, now: float) -> bool:
        """Record that a stream has failed for a reader that entered it at the time ``entered``.

        Readers that entered it before its last failure report that failure once more. Return
        whether this one is the first to report it.
        """
        last = self._failures.pop(key, None)
        first = True
        if last is None or now - last.until > LONGEST_PAUSE:
            last = _Failure(error.code_name, now, now + FIRST_PAUSE)
        elif entered > last.at:
            pause = (last.until - last.at) * (1 if RESUMABLE_LABEL in error.labels else 2)
            last = _Failure(error.code_name, now, now + min(pause, LONGEST_PAUSE))
        else:
            first = False
        self._failures[key] = last
        if len(self._failures) > MOST_FAILED:
            del self._failures[next(iter(self._failures))]
        return first

    def avoids(self, key: bytes, now: float) -> bool:
        """Return whether no client should enter the stream now."""
        failure = self._failures.get(key)
        return failure is not None and now < failure.until

    def explain(self, key: bytes, now: float) -> str:
        """Return why no client enters the stream now, or an empty string.

        It names the error alone: its message may quote an event of a collection that the client
        may not read.
        """
        failure = self._failures.get(key)
        if failure is None or now >= failure.until:
            return ""
        seconds = ceil(failure.until - now)
        return f"the shared stream failed and is not read for {seconds} s: {failure.code_name}"
