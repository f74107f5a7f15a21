"""The moves of clients between their own and shared streams: made frequent, and counted.

No event may depend on where a client reads. So the planners' decisions may change at any time: at
``whim``, a probability for each decision, a shared scan rests for a moment.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest import mock

from router.change_stream import traffic
from router.streams import shared_scans
from router.streams.placement import Placement
from router.streams.pool import StreamPool
from router.streams.shared_scans import SharedScans
from router.streams.sources import Source

_CONSTANTS = {
    "recent_events": (traffic, "_RECENT_EVENTS"),
    "bytes_of_a_scan": (shared_scans, "_BYTES_OF_A_SCAN"),
    "rest": (shared_scans, "_REST"),
}
_LONGEST_REST = 0.5
"""Seconds for which a scan rests at a whim."""


@dataclass
class Moves:
    """The numbers of moves, in all processes of a run."""

    to_shared: int = 0
    to_own: int = 0


@contextmanager
def frequent_moves(constants: Mapping[str, float], whim: float, chance: Random) -> Iterator[Moves]:
    """Count the moves during the block, and replace the constants that are named."""
    moves = Moves()
    moved = StreamPool._moved

    def count(pool: StreamPool, placement: Placement, source: Source) -> None:
        before = pool.moves_to_shared, pool.moves_to_own
        moved(pool, placement, source)
        moves.to_shared += pool.moves_to_shared - before[0]
        moves.to_own += pool.moves_to_own - before[1]

    is_shared = SharedScans.is_shared

    def rest(scans: SharedScans, scan: bytes, now: float, traffic: Any = None) -> bool:
        if not is_shared(scans, scan, now, traffic):
            return False
        if chance.random() >= whim:
            return True
        scans._scans[scan].resting_until = now + chance.random() ** 2 * _LONGEST_REST
        return False

    with ExitStack() as stack:
        for name, value in constants.items():
            module, constant = _CONSTANTS[name]
            stack.enter_context(mock.patch.object(module, constant, value))
        stack.enter_context(mock.patch.object(StreamPool, "_moved", count))
        if whim:
            stack.enter_context(mock.patch.object(SharedScans, "is_shared", rest))
        yield moves
