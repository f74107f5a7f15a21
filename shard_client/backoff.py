"""Exponential backoff with jitter."""

import random


class Backoff:
    """Pauses that grow exponentially, with jitter (docs/design.md#a-remote-cursor).

    ``first`` is the upper bound of the first pause and ``limit`` that of any pause, in seconds. A
    pause is shorter than its bound by a random part, at most the fraction ``jitter``: retries never
    become a busy loop.
    """

    __slots__ = ("_bound", "_first", "_jitter", "_limit")

    def __init__(self, first: float, limit: float, *, jitter: float = 0.75) -> None:
        self._first = first
        self._limit = limit
        self._bound = first
        self._jitter = jitter

    def next_pause(self) -> float:
        """Return the seconds to pause now; the next pause's bound is twice as long."""
        bound = self._bound
        self._bound = min(self._limit, bound * 2)
        return bound * (1 - self._jitter * random.random())

    def reset(self) -> None:
        """Return to the first bound after a success."""
        self._bound = self._first
