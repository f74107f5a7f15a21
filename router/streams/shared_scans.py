"""Counts of the readers that one wider scan could serve, and the decision that it does."""

from collections import Counter
from typing import Final

_FRACTION_TO_STAY: Final = 0.5
"""A shared scan goes on with few readers if they get at least this fraction of its events."""


class _Scan:
    __slots__ = ("below_since", "parts", "shared")

    def __init__(self) -> None:
        self.parts: Counter[bytes] = Counter()
        self.shared = False
        self.below_since: float | None = None


class SharedScans:
    """The different parts that clients read of each wider stream; does no I/O.

    A scan is shared from the ``least``-th part on, and no longer when there have been less than
    half as many for ``hold`` seconds, unless they get most of its events.
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
            state.shared = True
            state.below_since = None

    def leave(self, scan: bytes, part: bytes) -> None:
        """Stop counting a reader."""
        state = self._scans[scan]
        state.parts[part] -= 1
        if not state.parts[part]:
            del state.parts[part]
        if not state.parts:
            del self._scans[scan]

    def count(self, scan: bytes) -> int:
        """Return the number of different parts that are read."""
        state = self._scans.get(scan)
        return 0 if state is None else len(state.parts)

    def is_shared(self, scan: bytes, now: float, let_through: float = 0.0) -> bool:
        """Return whether the parts of a scan should share it.

        ``let_through`` is the number of its events that they get, each by one of them, as a
        fraction of all, where it is read already.
        """
        state = self._scans.get(scan)
        if state is None or not state.shared:
            return False
        count = len(state.parts)
        if count * 2 >= self._least or (count > 1 and let_through >= _FRACTION_TO_STAY):
            state.below_since = None
        elif state.below_since is None:
            state.below_since = now
        elif now - state.below_since >= self._hold:
            state.shared = False
        return state.shared
