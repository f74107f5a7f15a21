"""An amount that clients share: bounded in all, with room for each client."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Self


class FairLimit:
    """Admits what clients ask for as long as all of it together stays within a limit.

    A client that has nothing yet may have any that there is room for; ``share`` says how much more
    one may have, so that none leaves nothing to others. Those who have to wait take turns, as far
    as what they ask for fits.

    Args:
        limit: the most that all clients together may have.
        share: takes what a client would have, and what would remain free; returns whether it may.
    """

    def __init__(self, limit: int, share: Callable[[int, int], bool]) -> None:
        self._limit = limit
        self._share = share
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}

    @classmethod
    def of_messages(cls, limit: int) -> Self:
        """Return a limit of bytes, of which a client has at most what remains free."""
        return cls(limit, lambda own, free: own <= free)

    @classmethod
    def of_logins(cls, most: int) -> Self:
        """Return a limit of logins in progress, of which an address has at most half."""
        return cls(most, lambda own, _free: own <= most // 2)

    @property
    def held(self) -> int:
        """What all clients have."""
        return self._held.total()

    async def admit(self, client: str, size: int = 1) -> None:
        """Wait until a client may have ``size`` more; ``release`` returns it.

        Args:
            client: the user or, without a login, the address.
            size: the amount, at most the limit.
        """
        if client not in self._waiting and self._fits(client, size):
            self._held[client] += size
            return
        place = asyncio.get_running_loop().create_future(), size
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place[0]
        except asyncio.CancelledError:
            if not place[0].cancelled():  # it was admitted at the same time
                self.release(client, size)
            else:
                self._admit_others()  # without it
            raise

    def release(self, client: str, size: int = 1) -> None:
        """Take back what a client had, and admit others."""
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]
        self._admit_others()

    def _admit_others(self) -> None:
        """Admit those who wait, in turn by client; forget those that have gone."""
        while (client := next(filter(self._next_ends, self._waiting), None)) is not None:
            queue = self._waiting.pop(client)
            admitted, size = queue.popleft()
            if not admitted.done():
                self._held[client] += size
                admitted.set_result(None)
            if queue:
                self._waiting[client] = queue  # behind the other clients

    def _next_ends(self, client: str) -> bool:
        """Return whether the first wait of a client ends: it has gone, or fits."""
        admitted, size = self._waiting[client][0]
        return admitted.done() or self._fits(client, size)

    def _fits(self, client: str, size: int) -> bool:
        free = self._limit - self.held - size
        own = self._held[client]
        return free >= 0 and (not own or self._share(own + size, free))
