"""An amount that clients share: bounded in all, with room for each client."""

import asyncio
from collections import Counter, deque


class FairLimit:
    """Admits clients' requests for an amount, as long as the sum stays within a limit.

    A client that holds nothing gets any amount for which there is room; beyond that it holds at
    most what remains free, so half of the limit if it is alone. Waiting requests are admitted in
    turn, by client and size; a request that does not fit delays no smaller one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()
        # Waiting requests by client and size, in turn; of one client and size in order of arrival.
        self._waiting: dict[tuple[str, int], dict[asyncio.Future[None], None]] = {}
        self.held = 0
        """The amount that all clients hold together."""

    async def admit(self, client: str, size: int = 1) -> None:
        """Wait until a client may hold ``size`` more, at most the limit; ``release`` returns it.

        A client is a user or, without a login, an address.
        """
        if self._fits(client, size):
            self._take(client, size)
            return
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((client, size), {})[admitted] = None
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                waiting = self._waiting.get((client, size), {})
                waiting.pop(admitted, None)
                if not waiting:
                    self._waiting.pop((client, size), None)
            else:  # it was admitted at the same time
                self.release(client, size)
            raise

    def release(self, client: str, size: int = 1) -> None:
        """Return an amount that a client holds, and admit waiting requests that fit now."""
        self._take(client, -size)
        if not self._held[client]:
            del self._held[client]
        turns = deque(self._waiting)
        while turns and self.held < self._limit:
            place = turns.popleft()
            if not self._fits(*place):
                continue
            waiting = self._waiting.pop(place)
            admitted = next(iter(waiting))
            del waiting[admitted]
            if not admitted.done():
                self._take(*place)
                admitted.set_result(None)
            if waiting:
                self._waiting[place] = waiting  # behind the others
                turns.append(place)

    def _take(self, client: str, size: int) -> None:
        self._held[client] += size
        self.held += size

    def _fits(self, client: str, size: int) -> bool:
        free, of_client = self._limit - self.held - size, self._held.get(client, 0)
        return free >= 0 and (not of_client or of_client + size <= free)
