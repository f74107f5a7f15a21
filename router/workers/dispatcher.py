"""The parent's listening sockets: accept connections and distribute them to the workers."""

import asyncio
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count

import anyio
import structlog

from router.accepting_port import BACKLOG, accept, bind, peer_address
from router.limits.connection_limit import ConnectionLimit
from router.peers.messages import Load, Port, ServeClient
from router.workers.child import Child

log = structlog.get_logger(component="NETWORK")

_LOAD_TIMEOUT = 0.01
_KNOWN_FOR = 0.1
"""Seconds for which the loads are not asked for again, as when many clients connect at once."""
_RECENT = 1.0
"""Seconds within which a new connection opens a stream, if it does."""
_QUARTERS = 4


class ConnectionDispatcher:
    """Listens for all workers and hands each connection to the least loaded worker.

    ``children`` are the workers that are ready, by number. ``limit`` counts the driver connections
    of all workers.
    """

    def __init__(self, limit: ConnectionLimit) -> None:
        self._limit = limit
        self._listening: list[tuple[Port, socket.socket]] = []
        self.children: dict[int, Child] = {}
        self._some = asyncio.Event()
        self._ids = count(1)
        self._last = 0
        self._recent: Counter[int] = Counter()
        """The numbers of recent connections by worker."""
        self._known_until = 0.0
        self._asking = asyncio.Lock()

    async def open(self, kind: Port, hosts: Sequence[str], port: int) -> int:
        """Bind ``port`` on all ``hosts`` and return it; 0 selects one free port for all hosts.

        Clients cannot connect before ``listen``. Raises OSError, as ``bind``.
        """
        bound = await bind(hosts, port)
        self._listening += [(kind, listening) for listening in bound]
        return int(bound[0].getsockname()[1])

    def listen(self) -> None:
        """Start accepting clients' connections; raises OSError."""
        for _kind, listening in self._listening:
            listening.listen(BACKLOG)

    def add(self, child: Child) -> None:
        """Include this worker in the distribution."""
        self.children[child.number] = child
        self._some.set()

    def remove(self, number: int) -> None:
        """Remove this worker from the distribution, if it is included."""
        child = self.children.pop(number, None)
        if child is not None:
            for address in child.clients.values():
                self._limit.release(address)
        if not self.children:
            self._some.clear()

    def release(self, child: Child, connection_id: int) -> None:
        """Count a connection of a worker no longer, if it is one of a driver."""
        if connection_id in child.clients:
            self._limit.release(child.clients.pop(connection_id))

    async def dispatch(self) -> None:
        """Distribute connections until cancelled; they wait while there is no worker."""
        async with anyio.create_task_group() as tasks:
            for kind, listening in self._listening:
                tasks.start_soon(self._accept, kind, listening)

    def close(self) -> None:
        """Close the listening sockets."""
        for _kind, listening in self._listening:
            listening.close()
        self._listening.clear()

    async def _accept(self, kind: Port, listening: socket.socket) -> None:
        async for connection in accept(listening):
            with connection:
                await self._know_loads()
                self._place(kind, connection)

    async def _know_loads(self) -> None:
        """Wait until there is a worker, and the loads are known: one port asks for all."""
        loop, known = asyncio.get_running_loop(), False
        async with self._asking:
            while not known:
                await self._some.wait()
                if loop.time() >= self._known_until:
                    asked = (child.ask_load(_LOAD_TIMEOUT) for child in self.children.values())
                    await asyncio.gather(*asked)
                    self._known_until = loop.time() + _KNOWN_FOR
                known = bool(self.children)  # the last one may have died meanwhile

    def _place(self, kind: Port, connection: socket.socket) -> None:
        children, connection_id = self.children, next(self._ids)
        taking = {number: child.load for number, child in children.items() if not child.hangs}
        loads = taking or {number: child.load for number, child in children.items()}
        loop = asyncio.get_running_loop()
        address = peer_address(connection)
        if kind == "driver" and not self._limit.admit(address, loop.time()):
            return
        while loads:
            number = choose_worker(loads, self._recent, self._last)
            try:
                children[number].channel.hand_over(connection, ServeClient(kind, connection_id))
            except OSError as error:
                log.warning("A worker accepts no connection", worker=number, error=str(error))
                del loads[number]
            else:
                if kind == "driver":
                    children[number].clients[connection_id] = address
                self._last = number
                self._recent[number] += 1
                loop.call_later(_RECENT, self._recent.subtract, [number])
                return
        if kind == "driver":
            self._limit.release(address)


def choose_worker(loads: Mapping[int, Load], recent: Mapping[int, int], last: int) -> int:
    """Return the number of the least loaded worker.

    Load is counted in quarters of a core: the quarters used recently, plus one for each recent
    connection, which may open a cursor, plus one for each cursor beyond the smallest number of
    cursors of any worker. The last term is limited to less than a whole core, since one cursor can
    be more work than a thousand quiet ones. Ties are broken by open cursors, then by connections,
    then round-robin.

    Args:
        loads: the workers that accept connections, at least one.
        recent: each worker's number of recent connections.
        last: the worker chosen last.
    """
    least = min(load.cursors for load in loads.values())

    def burden(number: int) -> tuple[int, int, int, bool, int]:
        load = loads[number]
        more = min(load.cursors - least, _QUARTERS - 1)
        return (
            round(load.busy * _QUARTERS) + recent.get(number, 0) + more,
            load.cursors,
            load.connections,
            number <= last,
            number,
        )

    return min(loads, key=burden)
