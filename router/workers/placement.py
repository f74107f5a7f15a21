"""The choice of a worker for a new connection, without I/O."""

from collections.abc import Mapping
from dataclasses import dataclass

_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a worker.

    ``streams`` is the number of its open merged cursors, ``connections`` the number of driver
    connections, ``busy`` the share of a core used recently, 0 to 1.
    """

    streams: int = 0
    connections: int = 0
    busy: float = 0.0


def choose_worker(loads: Mapping[int, Load], recent: Mapping[int, int], last: int) -> int:
    """Return the number of the least loaded worker.

    Load is counted in quarters of a core: the quarters used recently, plus one for each recent
    connection, which may open a stream, plus one for each stream beyond the smallest number of
    streams of any worker. The last term is limited to less than a whole core, since one stream can
    be more work than a thousand quiet ones. Ties are broken by open streams, then by connections,
    then round-robin.

    Args:
        loads: the workers that accept connections, at least one.
        recent: each worker's number of recent connections.
        last: the worker chosen last.
    """
    least = min(load.streams for load in loads.values())

    def burden(number: int) -> tuple[int, int, int, bool, int]:
        load = loads[number]
        more = min(load.streams - least, _QUARTERS - 1)
        return (
            round(load.busy * _QUARTERS) + recent.get(number, 0) + more,
            load.streams,
            load.connections,
            number <= last,
            number,
        )

    return min(loads, key=burden)
