"""Cursor ids that contain the number of the owning worker, so that any worker can find it."""

import secrets
from collections.abc import Callable

MOST_WORKERS = 255

_RANDOM_BITS = 40
_WORKER_BITS = 8
_MARK_BITS = 15
_MARK_SHIFT = _RANDOM_BITS + _WORKER_BITS


def new_mark() -> int:
    """Return a random mark for all cursor ids of one router."""
    return secrets.randbits(_MARK_BITS)


class CursorIds:
    """Creates one worker's cursor ids and parses those of all workers.

    From its highest bit, an id consists of a zero (ids are positive), the router's mark, the
    worker's number, and random bits. An id created by the upstream has the same mark with a
    probability of 1 in 32,768, so the owner has to confirm the result of ``owner``.

    Args:
        worker: this worker's number, from 1.
        mark: the result of ``new_mark``, the same for all workers.
        chance: returns a random number with the given number of bits.
    """

    def __init__(
        self, worker: int, mark: int, chance: Callable[[int], int] = secrets.randbits
    ) -> None:
        if not 1 <= worker <= MOST_WORKERS:
            raise ValueError(f"a worker's number is from 1 to {MOST_WORKERS}, not {worker}")
        self.worker = worker
        self._mark = mark
        self._prefix = (mark << _WORKER_BITS | worker) << _RANDOM_BITS
        self._chance = chance

    def new_id(self) -> int:
        """Return a new id that contains this worker's number."""
        return self._prefix | self._chance(_RANDOM_BITS)

    def owner(self, cursor_id: int) -> int | None:
        """Return the number of the worker in the id, or None if it is not an id of the router."""
        if cursor_id < 0 or cursor_id >> _MARK_SHIFT != self._mark:
            return None
        return cursor_id >> _RANDOM_BITS & (1 << _WORKER_BITS) - 1 or None
