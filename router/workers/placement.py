"""The choice of a worker for a new connection, without I/O."""

from collections.abc import Mapping

from router.peers.messages import Load

_QUARTERS = 4


def choose_worker(loads: Mapping[int, Load], recent: Mapping[int, int], last: int) -> int:
    """Return the number of the least loaded worker.

    Load is counted in quarters of a core: the quarters used recently, plus one for each recent
    connection, which may open a cursor, plus one for each cursor beyond the smallest number of
    cursors of any worker. The last term is limited to less than a whole core, since one cursor can
    be more work than a thousand quiet ones. Ties are broken by open cursors, then by connections,
    then round-robin.

    Args:
        loads: the workers that accept connections, at least one.
        recent: each worker's number of recent connections.
        last: the worker chosen last.
    """
    least = min(load.cursors for load in loads.values())

    def burden(number: int) -> tuple[int, int, int, bool, int]:
        load = loads[number]
        more = min(load.cursors - least, _QUARTERS - 1)
        return (
            round(load.busy * _QUARTERS) + recent.get(number, 0) + more,
            load.cursors,
            load.connections,
            number <= last,
            number,
        )

    return min(loads, key=burden)
