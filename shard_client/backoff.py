"""Exponential backoff with jitter."""

import random
from collections.abc import Callable


class Backoff:
    """Pauses that grow exponentially, with jitter (docs/design.md#a-remote-cursor).

    ``first`` is the upper bound of the first pause and ``limit`` that of any pause, in seconds;
    ``chance`` draws from [0, 1). A pause is at least a quarter of its bound, so that retries never
    become a busy loop.
    """

    __slots__ = ("_bound", "_chance", "_first", "_limit")

    def __init__(
        self, first: float, limit: float, chance: Callable[[], float] = random.random
    ) -> None:
        self._first = first
        self._limit = limit
        self._bound = first
        self._chance = chance

    def next_pause(self) -> float:
        """Return the seconds to pause now; the next pause's bound is twice as long."""
        bound = self._bound
        self._bound = min(self._limit, bound * 2)
        return bound * (0.25 + 0.75 * self._chance())

    def reset(self) -> None:
        """Return to the first bound after a success."""
        self._bound = self._first
