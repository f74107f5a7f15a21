"""Turns of the event loop, which clients take so that no iteration of it gets long."""

import asyncio
from collections import deque
from typing import Final

MILLISECOND: Final = 8
"""The cost of a millisecond's work: clients may take that of one iteration of the loop together."""


class Turns:
    """Lets clients take their turns in the order in which they ask, a few in each iteration.

    Between two iterations, the loop does everything else that is ready: what servers send, replies
    to waiting getMores, timers. While nobody waits, a turn costs nothing. The turns of an iteration
    cost ``most`` together; one turn may cost more.
    """

    def __init__(self, most: int = MILLISECOND) -> None:
        self._most = most
        self._left = most
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._renewal: asyncio.Handle | None = None

    async def take(self, cost: int = 1) -> None:
        """Wait for a turn; ``cost`` is 1 for a small message, or in parts of MILLISECOND."""
        if self._left > 0 and not self._waiting:
            self._spend(cost)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, cost))
        await turn

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        """Begin the turns of another iteration."""
        self._renewal = None
        self._left = self._most
        while self._waiting and self._left > 0:
            turn, cost = self._waiting.popleft()
            if not turn.done():  # its client may be gone
                turn.set_result(None)
                self._spend(cost)
