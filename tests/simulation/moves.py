"""The moves of clients between their own and shared streams: made frequent, and counted."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from router.change_stream import traffic
from router.streams import shared_scans
from router.streams.placement import Placement
from router.streams.pool import StreamPool
from router.streams.sources import Source

_CONSTANTS = {
    "recent_events": (traffic, "_RECENT_EVENTS"),
    "bytes_of_a_scan": (shared_scans, "_BYTES_OF_A_SCAN"),
    "rest": (shared_scans, "_REST"),
}


@dataclass
class Moves:
    """The numbers of moves, in all processes of a run."""

    to_shared: int = 0
    to_own: int = 0


@contextmanager
def frequent_moves(constants: Mapping[str, float]) -> Iterator[Moves]:
    """Count the moves during the block, and replace the constants that are named."""
    moves = Moves()
    moved = StreamPool._moved

    def count(pool: StreamPool, placement: Placement, source: Source) -> None:
        before = pool.moves_to_shared, pool.moves_to_own
        moved(pool, placement, source)
        moves.to_shared += pool.moves_to_shared - before[0]
        moves.to_own += pool.moves_to_own - before[1]

    with ExitStack() as stack:
        for name, value in constants.items():
            module, constant = _CONSTANTS[name]
            stack.enter_context(mock.patch.object(module, constant, value))
        stack.enter_context(mock.patch.object(StreamPool, "_moved", count))
        yield moves
