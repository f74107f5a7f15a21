"""Counts of the readers that one wider scan could serve, and the decision that it does."""

from collections import Counter
from typing import Final

from router.change_stream.traffic import Traffic

_FRACTION_TO_STAY: Final = 0.5
"""A shared scan goes on with few readers if they get at least this fraction of its events."""


_BYTES_OF_A_SCAN: Final = 2000
"""Bytes of an event that a shard sends for less than another scan of its oplog entry costs it
(docs/performance.md#streams-of-many-collections)."""

RESTS: Final = "the shared stream read much more than its readers"
"""Why a scan is not shared for a while, for explain."""

_REST: Final = 60
"""A scan that costs more than it saves is shared again after so many times ``hold``."""


class _Scan:
    __slots__ = ("below_since", "parts", "resting_until", "wanted")

    def __init__(self) -> None:
        self.parts: Counter[bytes] = Counter()
        self.wanted = False
        self.below_since: float | None = None
        self.resting_until = 0.0


class SharedScans:
    """The different parts that clients read of each wider stream; does no I/O.

    A scan is shared from the ``least``-th part on, and no longer when there have been less than
    half as many for ``hold`` seconds, unless they get most of its events. While the shards would
    send much more than the parts need, it rests: that costs more than the scans that it saves. It
    also rests when the router has been behind for ``hold`` seconds with events that few readers
    get: the shards can leave these out.
    """

    def __init__(self, least: int, hold: float) -> None:
        self._least = least
        self._hold = hold
        self._scans: dict[bytes, _Scan] = {}

    def join(self, scan: bytes, part: bytes, *, begins: bool) -> None:
        """Count a reader of ``part``; ``begins`` is whether the count may begin the sharing."""
        state = self._scans.setdefault(scan, _Scan())
        state.parts[part] += 1
        if begins and len(state.parts) >= self._least:
            state.wanted = True
            state.below_since = None

    def leave(self, scan: bytes, part: bytes) -> None:
        """Stop counting a reader."""
        state = self._scans[scan]
        state.parts[part] -= 1
        if not state.parts[part]:
            del state.parts[part]
        if not state.parts:
            del self._scans[scan]

    def has(self, scan: bytes, part: bytes) -> bool:
        """Return whether ``part`` has a reader."""
        state = self._scans.get(scan)
        return state is not None and part in state.parts

    def count(self, scan: bytes) -> int:
        """Return the number of different parts that are read."""
        state = self._scans.get(scan)
        return 0 if state is None else len(state.parts)

    def rests(self, scan: bytes, now: float) -> bool:
        """Return whether a scan is not shared because the shards would send too much."""
        state = self._scans.get(scan)
        return state is not None and now < state.resting_until

    def is_shared(self, scan: bytes, now: float, traffic: Traffic | None = None) -> bool:
        """Return whether the parts of a scan should share it.

        ``traffic`` is that of the shared stream, where it is read already.
        """
        state = self._scans.get(scan)
        if state is None or not state.wanted or now < state.resting_until:
            return False
        count = len(state.parts)
        let_through = 0.0 if traffic is None else traffic.let_through
        if traffic is not None:
            costly = traffic.unwatched_bytes > count * _BYTES_OF_A_SCAN
            late = traffic.is_behind(now - self._hold) and let_through < _FRACTION_TO_STAY
            if costly or late:
                state.resting_until = now + _REST * self._hold
                return False
        if count * 2 >= self._least or (count > 1 and let_through >= _FRACTION_TO_STAY):
            state.below_since = None
        elif state.below_since is None:
            state.below_since = now
        elif now - state.below_since >= self._hold:
            state.wanted = False
        return state.wanted
