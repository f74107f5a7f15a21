"""Which worker gets a new connection: the decision alone, without any I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker has to do.

    ``streams`` are its open merged cursors; ``connections`` those of drivers, of which a monitor
    waits on each of ``monitors``; ``busy`` is the share of a core that it has used lately, 0 to 1;
    ``taken`` is how many connections were handed to it and have arrived.
    """

    streams: int = 0
    connections: int = 0
    monitors: int = 0
    busy: float = 0.0
    taken: int = 0


def choose_worker(loads: Mapping[int, Load], undecided: Mapping[int, int], last: int) -> int:
    """Return the number of the worker that has the least to do.

    That is reckoned in quarters of a core: those used lately; one for each connection that may be
    about to open a stream; one for each stream more than others have, but never as much as a whole
    core, since one stream may be more work than a thousand quiet ones. Then open streams count,
    then the other connections; equals take turns.

    Args:
        loads: the workers that take connections; there is at least one.
        undecided: of how many new connections each does not know yet what they are for.
        last: the worker that was chosen before.
    """
    least = min(load.streams for load in loads.values())

    def burden(number: int) -> tuple[int, int, int, bool, int]:
        load = loads[number]
        more = min(load.streams - least, _QUARTERS - 1)
        return (
            round(load.busy * _QUARTERS) + undecided.get(number, 0) + more,
            load.streams,
            load.connections - load.monitors,
            number <= last,
            number,
        )

    return min(loads, key=burden)
