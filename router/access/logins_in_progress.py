"""Bounds the logins that are in progress at a time, in turn by address."""

import asyncio
from collections import Counter, deque


class LoginsInProgress:
    """Admits a bounded number of logins at a time; further ones wait for their turn.

    Addresses take turns, and one address has at most half of the logins in progress, so that a
    client with many does not keep others out. Create it in a running loop.

    Args:
        most: maximum number of logins in progress, at least 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_of_one = max(1, most // 2)
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        """Return the number of logins in progress."""
        return self._open

    async def begin(self, address: str) -> None:
        """Wait until one more login from ``address`` is admitted; ``end`` returns the right."""
        if address not in self._waiting and self._admits(address):
            self._take(address)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end(address)
            else:
                self._forget(address, turn)
            raise

    def end(self, address: str) -> None:
        """End a login from ``address``, which lets the next one begin."""
        self._open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self._admit_next()

    def _admits(self, address: str) -> bool:
        return self._open < self._most and self._by_address[address] < self._most_of_one

    def _take(self, address: str) -> None:
        self._open += 1
        self._by_address[address] += 1

    def _admit_next(self) -> None:
        address = next((each for each in self._waiting if self._admits(each)), None)
        if address is None:
            return
        turns = self._waiting.pop(address)
        turn = turns.popleft()
        if turns:
            self._waiting[address] = turns  # behind the other addresses
        self._take(address)
        turn.set_result(None)

    def _forget(self, address: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting[address]
        turns.remove(turn)
        if not turns:
            del self._waiting[address]
