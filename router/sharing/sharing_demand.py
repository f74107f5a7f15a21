"""Counts of the readers that one scan of the shards' oplogs could serve, and whether it does."""

from collections import Counter
from math import inf
from typing import Final

from router.views.traffic import Traffic

_FRACTION_TO_STAY: Final = 0.5
"""A shared scan continues with few readers if they get at least this fraction of its events."""


_BYTES_OF_A_SCAN: Final = 2000
"""Bytes of an event that a shard sends for less than another scan of its oplog entry costs it
(docs/performance.md#streams-of-many-collections)."""

PAUSED: Final = "the shared stream read much more than its readers"
"""Why a scan is not shared for a while, for explain."""

_PAUSE: Final = 60
"""A scan that costs more than it saves is shared again after so many times ``hold``."""


class _Demand:
    __slots__ = ("cost", "let_through", "parts", "paused_until", "shared_until")

    def __init__(self) -> None:
        self.parts: Counter[bytes] = Counter()
        self.cost = 0
        self.shared_until = -inf
        self.paused_until = 0.0
        self.let_through = 0.0


_NONE: Final = _Demand()


class SharingDemand:
    """The different parts that clients read of each wider stream; does no I/O.

    A scan is shared from the ``least``-th part on, and no longer when there have been less than
    half as many for ``hold`` seconds, unless they get most of its events. It is paused when the
    shards send much more than the parts need, which costs more than the scans that it saves, and
    when the router has been behind for ``hold`` seconds with events that few readers get, since
    the shards can leave these out. All times are on the loop's clock.
    """

    def __init__(self, least: int, hold: float) -> None:
        self.least = least
        self._hold = hold
        self._scans: dict[bytes, _Demand] = {}

    def join(self, scan: bytes, part: bytes, now: float, *, cost: int = 0, begins: bool) -> None:
        """Count a reader of ``part``; ``begins`` is whether the count may begin the sharing.

        ``cost`` is the part's, the same for all of its readers.
        """
        state = self._scans.setdefault(scan, _Demand())
        state.cost += 0 if part in state.parts else cost
        state.parts[part] += 1
        if begins and len(state.parts) >= self.least:
            state.shared_until = inf
        self._count(state, now)

    def leave(self, scan: bytes, part: bytes, now: float, *, cost: int = 0) -> None:
        """Stop counting a reader."""
        state = self._scans[scan]
        state.parts[part] -= 1
        if not state.parts[part]:
            del state.parts[part]
            state.cost -= cost
        if not state.parts:
            del self._scans[scan]
        self._count(state, now)

    def record(self, scan: bytes, traffic: Traffic, now: float) -> None:
        """Record the recent traffic of a scan that is read and shared."""
        state = self._scans.get(scan)
        if state is None:
            return
        state.let_through = traffic.let_through
        costly = traffic.unwatched_bytes > len(state.parts) * _BYTES_OF_A_SCAN
        late = traffic.is_behind(now - self._hold) and state.let_through < _FRACTION_TO_STAY
        if (costly or late) and self.is_shared(scan, now):
            state.paused_until = now + _PAUSE * self._hold
            state.let_through = 0.0
        self._count(state, now)

    def _count(self, state: _Demand, now: float) -> None:
        """Begin or end the time for which a scan with few parts is shared on."""
        count = len(state.parts)
        few = count * 2 < self.least
        if few and (count < 2 or state.let_through < _FRACTION_TO_STAY):
            state.shared_until = min(state.shared_until, now + self._hold)
        elif now < state.shared_until:
            state.shared_until = inf

    def has(self, scan: bytes, part: bytes) -> bool:
        """Return whether ``part`` has a reader."""
        return part in self._of(scan).parts

    def count(self, scan: bytes) -> int:
        """Return the number of different parts that are read."""
        return len(self._of(scan).parts)

    def cost(self, scan: bytes) -> int:
        """Return the sum of the costs of the different parts that are read."""
        return self._of(scan).cost

    def is_paused(self, scan: bytes, now: float) -> bool:
        """Return whether a scan is not shared because the shards would send too much."""
        return now < self._of(scan).paused_until

    def is_shared(self, scan: bytes, now: float) -> bool:
        """Return whether the parts of a scan should share it."""
        state = self._of(scan)
        return state.paused_until <= now < state.shared_until

    def _of(self, scan: bytes) -> _Demand:
        return self._scans.get(scan, _NONE)
