"""Cursor ids that name the worker whose cursor it is, so that any worker finds it."""

import secrets
from collections.abc import Callable

MOST_WORKERS = 255

_RANDOM_BITS = 40
_WORKER_BITS = 8
_MARK_BITS = 15
_MARK_SHIFT = _RANDOM_BITS + _WORKER_BITS


def new_mark() -> int:
    """Return the mark that all cursor ids of one router carry."""
    return secrets.randbits(_MARK_BITS)


class CursorIds:
    """Makes one worker's cursor ids and reads those of all workers.

    An id is, from its highest bit: a zero (ids are positive), the router's mark, the worker's
    number, and chance. An id that was made elsewhere, by the upstream, carries the mark in one of
    32,768 cases: what ``owner`` says is a claim that the owner has to confirm.

    Args:
        worker: this worker's number, from 1.
        mark: what ``new_mark`` gave, the same for all workers.
        chance: gives a random number of so many bits.
    """

    def __init__(
        self, worker: int, mark: int, chance: Callable[[int], int] = secrets.randbits
    ) -> None:
        if not 1 <= worker <= MOST_WORKERS:
            raise ValueError(f"a worker's number is from 1 to {MOST_WORKERS}, not {worker}")
        self._worker = worker
        self._mark = mark
        self._prefix = (mark << _WORKER_BITS | worker) << _RANDOM_BITS
        self._chance = chance

    def new_id(self) -> int:
        """Return an id that names this worker."""
        return self._prefix | self._chance(_RANDOM_BITS)

    def owner(self, cursor_id: int) -> int | None:
        """Return the number of the worker that the id names, None if it is none of the router's."""
        if cursor_id < 0 or cursor_id >> _MARK_SHIFT != self._mark:
            return None
        return cursor_id >> _RANDOM_BITS & (1 << _WORKER_BITS) - 1 or None
