"""The moves of clients between their own and shared streams: made frequent, and counted.

No event may depend on where a client reads. So the policy's decisions may change at any time: at
``whim``, a probability for each decision, a shared stream is paused for a moment.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from unittest import mock

from router.stream import sharing_demand
from router.stream.client_reader import ClientReader
from router.stream.readers import fan_out
from router.stream.sharing_demand import SharingDemand
from router.stream.sources import Source

_CONSTANTS = {
    "recent_events": (fan_out, "_RECENT_EVENTS"),
    "bytes_of_a_scan": (sharing_demand, "_BYTES_OF_A_SCAN"),
    "pause": (sharing_demand, "_PAUSE_IN_HOLDS"),
}
_LONGEST_PAUSE = 0.5
"""Seconds for which a stream is paused at a whim."""


@dataclass
class Moves:
    """The numbers of moves, in all processes of a run."""

    to_shared: int = 0
    to_own: int = 0


@contextmanager
def frequent_moves(constants: Mapping[str, float], whim: float, chance: Random) -> Iterator[Moves]:
    """Count the moves during the block, and replace the constants that are named."""
    moves = Moves()
    reads = ClientReader._record_source

    def count(reading: ClientReader, source: Source) -> None:
        streams = reading._streams
        before = streams.moves_to_shared, streams.moves_to_own
        reads(reading, source)
        moves.to_shared += streams.moves_to_shared - before[0]
        moves.to_own += streams.moves_to_own - before[1]

    is_shared = SharingDemand.is_shared

    def pause(demand: SharingDemand, key: bytes, now: float) -> bool:
        if not is_shared(demand, key, now):
            return False
        if chance.random() >= whim:
            return True
        demand.pause(key, now + chance.random() ** 2 * _LONGEST_PAUSE)
        return False

    with ExitStack() as stack:
        for name, value in constants.items():
            module, constant = _CONSTANTS[name]
            stack.enter_context(mock.patch.object(module, constant, value))
        stack.enter_context(mock.patch.object(ClientReader, "_record_source", count))
        if whim:
            stack.enter_context(mock.patch.object(SharingDemand, "is_shared", pause))
        yield moves
