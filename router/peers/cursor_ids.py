"""Cursor ids that contain the number of the owning worker, so that any worker can find it.

From its highest bit, an id consists of a zero (ids are positive), the router's mark, the worker's
number, and random bits.
"""

import secrets

MOST_WORKERS = 255

_RANDOM_BITS = 40
_WORKER_BITS = 8
_MARK_BITS = 15
_MARK_SHIFT = _RANDOM_BITS + _WORKER_BITS


def new_mark() -> int:
    """Return a random mark for all cursor ids of one router."""
    return secrets.randbits(_MARK_BITS)


def new_cursor_id(mark: int, worker: int) -> int:
    """Return a new id of a cursor that the worker of this number, from 1, owns."""
    return (mark << _WORKER_BITS | worker) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)


def worker_of(mark: int, cursor_id: int) -> int | None:
    """Return the number of the worker in the id, or None if it is not an id of the router.

    An id created by the upstream has the same mark with a probability of 1 in 32,768, so the owner
    has to confirm the result.
    """
    if cursor_id < 0 or cursor_id >> _MARK_SHIFT != mark:
        return None
    return cursor_id >> _RANDOM_BITS & (1 << _WORKER_BITS) - 1 or None
