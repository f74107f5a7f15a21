"""The parent's listening sockets: accept connections and distribute them to the workers."""

import asyncio
import socket
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count

import anyio
import structlog

from router.client_limits import ConnectionCounts
from router.tls.sockets import BACKLOG, accept, bind, peer_address
from router.workers.channel import DRIVER, HandedConnection
from router.workers.child import Child
from router.workers.placement import choose_worker

log = structlog.get_logger(component="NETWORK")

_LOAD_TIMEOUT = 0.01
_WAITING = 256
_RECENT = 1.0
"""Seconds within which a new connection opens a stream, if it does."""
_MOST_RECENT = 256


class ConnectionDispatcher:
    """Listens for all workers and hands each connection to the least loaded worker.

    Args:
        counts: counts the driver connections of all workers and holds their limits.
    """

    def __init__(self, counts: ConnectionCounts) -> None:
        self._counts = counts
        self._listening: list[tuple[bytes, socket.socket]] = []
        self._children: dict[int, Child] = {}
        self._given: dict[int, dict[int, str | None]] = {}
        self._some = asyncio.Event()
        self._ids = count(1)
        self._last = 0
        self._dispatched: deque[tuple[float, int]] = deque(maxlen=_MOST_RECENT)
        """The time and the worker of recent connections."""

    async def open(self, kind: bytes, hosts: Sequence[str], port: int) -> int:
        """Bind ``port`` on all ``hosts`` and return it; 0 selects one free port for all hosts.

        Clients cannot connect before ``listen``.

        Args:
            kind: DRIVER or FEED.
            hosts: names or addresses of this machine.
            port: the port.

        Raises:
            OSError: the port is in use or a host is not an address of this machine.
        """
        bound = await bind(hosts, port)
        self._listening += [(kind, each) for each in bound]
        return int(bound[0].getsockname()[1])

    def listen(self) -> None:
        """Start accepting clients' connections; raises OSError."""
        for _kind, listening in self._listening:
            listening.listen(BACKLOG)

    def add(self, child: Child) -> None:
        """Include this worker in the distribution."""
        self._children[child.number] = child
        self._given[child.number] = {}
        self._some.set()

    def remove(self, number: int) -> None:
        """Remove this worker from the distribution, if it is included."""
        self._children.pop(number, None)
        for address in self._given.pop(number, {}).values():
            self._counts.ended(address)
        if not self._children:
            self._some.clear()

    def ended(self, number: int, connection_id: int) -> None:
        """Count a connection of a worker no longer, if it is one of a driver."""
        given = self._given.get(number, {})
        if connection_id in given:
            self._counts.ended(given.pop(connection_id))

    async def dispatch(self) -> None:
        """Distribute connections until cancelled; they wait while there is no worker."""
        waiting: asyncio.Queue[HandedConnection] = asyncio.Queue(_WAITING)
        async with anyio.create_task_group() as tasks:
            for kind, listening in self._listening:
                tasks.start_soon(self._accept, kind, listening, waiting)
            try:
                while True:
                    batch = [await waiting.get()]
                    while not waiting.empty():
                        batch.append(waiting.get_nowait())
                    await self._dispatch_batch(batch)
            finally:
                while not waiting.empty():
                    waiting.get_nowait().connection.close()

    def close(self) -> None:
        """Close the listening sockets."""
        for _kind, listening in self._listening:
            listening.close()
        self._listening.clear()

    async def _accept(
        self, kind: bytes, listening: socket.socket, waiting: asyncio.Queue[HandedConnection]
    ) -> None:
        async for connection in accept(listening):
            await waiting.put(HandedConnection(kind, next(self._ids), connection))

    async def _dispatch_batch(self, batch: Sequence[HandedConnection]) -> None:
        """Query the workers' loads, then place the connections of the batch."""
        await self._some.wait()
        await asyncio.gather(*(child.ask_load(_LOAD_TIMEOUT) for child in self._children.values()))
        for handed in batch:
            with handed.connection:
                self._place(handed)

    def _place(self, handed: HandedConnection) -> None:
        children = self._children
        taking = {number: child.load for number, child in children.items() if not child.hangs}
        loads = taking or {number: child.load for number, child in children.items()}
        now = asyncio.get_running_loop().time()
        while self._dispatched and self._dispatched[0][0] < now - _RECENT:
            self._dispatched.popleft()
        recent = Counter(number for _time, number in self._dispatched)
        address = peer_address(handed.connection)
        if handed.port == DRIVER and not self._counts.admit(address, now):
            return
        while loads:
            number = choose_worker(loads, recent, self._last)
            try:
                children[number].hand_over(handed)
            except OSError as error:
                log.warning(
                    "A worker accepts no connection",
                    worker=number,
                    error=str(error),
                )
                del loads[number]
            else:
                if handed.port == DRIVER:
                    self._given[number][handed.connection_id] = address
                self._last = number
                self._dispatched.append((now, number))
                return
        if handed.port == DRIVER:
            self._counts.ended(address)
