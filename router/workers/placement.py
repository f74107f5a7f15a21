"""Which worker gets a new connection: the decision alone, without any I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

_BUSY_STEPS = 4


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


def choose_worker(loads: Mapping[int, Load], lately: Mapping[int, int], last: int) -> int:
    """Return the number of the worker that has the least to do.

    First counts the processor, in quarters of a core, since one stream may be more work than a
    thousand quiet ones; then open streams, with every new connection taken for one that is about
    to open; then the other connections. Equals take turns.

    Args:
        loads: the workers that take connections; there is at least one.
        lately: how many connections each was handed a moment ago.
        last: the worker that was chosen before.
    """

    def burden(number: int) -> tuple[int, int, int, bool, int]:
        load = loads[number]
        return (
            round(load.busy * _BUSY_STEPS),
            load.streams + lately.get(number, 0),
            load.connections - load.monitors,
            number <= last,
            number,
        )

    return min(loads, key=burden)
