"""The bytes of large messages that clients send: bounded in all, with room for each client."""

import asyncio
from collections import Counter, deque
from typing import Final

LARGE: Final = 64 * 1024
"""Bytes of a message beyond which it counts."""


class Intake:
    """Admits large messages as long as their bytes together stay within a limit.

    A message counts with the length in its header, until its command has been answered. A client
    that has none yet may send any that there is room for; one that has some may hold as many bytes
    as remain free, so that none leaves nothing to others. Messages that have to wait are admitted
    in the order of their arrival, as far as they fit.

    Args:
        limit: maximum number of bytes, at least twice the longest message.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()
        self._waiting: deque[tuple[asyncio.Future[None], str, int]] = deque()

    @property
    def held(self) -> int:
        """The bytes of all messages that are admitted."""
        return self._held.total()

    async def admit(self, client: str, size: int) -> None:
        """Wait until a message may be received; ``release`` it afterwards.

        Args:
            client: the user or, without a login, the address.
            size: the message's length in bytes.
        """
        if not self._fits(client, size):
            admitted = asyncio.get_running_loop().create_future()
            self._waiting.append((admitted, client, size))
            try:
                await admitted
            except asyncio.CancelledError:
                if admitted.done() and not admitted.cancelled():
                    self.release(client, size)
                raise
        else:
            self._held[client] += size

    def release(self, client: str, size: int) -> None:
        """Count an admitted message no longer, and admit others."""
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]
        for _ in range(len(self._waiting)):
            admitted, name, wanted = waiting = self._waiting.popleft()
            if admitted.done():  # its connection has ended
                continue
            if self._fits(name, wanted):
                self._held[name] += wanted
                admitted.set_result(None)
            else:
                self._waiting.append(waiting)

    def _fits(self, client: str, size: int) -> bool:
        free = self._limit - self.held - size
        own = self._held.get(client, 0)
        return free >= 0 and (not own or own + size <= free)
