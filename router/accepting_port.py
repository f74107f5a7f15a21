"""Listening sockets, and the connections that they accept."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack

import anyio
import structlog

from router.limits.connection_limit import ConnectionLimit
from router.tasks import END_TIMEOUT, OwnedTasks
from router.tls.handshake import Handshakes, peer_of

log = structlog.get_logger(component="NETWORK")

BACKLOG = 1024
"""The number of connections that the system keeps until they are accepted."""

_PAUSE = 0.1


async def bind(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Return a socket for each address of ``hosts``, bound to the same port but not listening yet.

    Port 0 selects one free port for all hosts, which are names or addresses of this machine. Raises
    OSError: the port is in use, or a host is not an address of this machine.
    """
    bound: list[socket.socket] = []
    with ExitStack() as opened:
        for host in hosts:
            for family, _, _, _, address in await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                each = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
                bound.append(each)
                each.setblocking(False)
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                each.bind((address[0], port, *address[2:]))
                port = each.getsockname()[1]
        opened.pop_all()
    return bound


async def accept(listening: socket.socket) -> AsyncIterator[socket.socket]:
    """Yield the connections that a listening socket accepts, in non-blocking mode."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, _address = await loop.sock_accept(listening)
        except OSError as error:  # no descriptors left, or the client has disconnected
            log.warning("Cannot accept a connection", error=str(error))
            await asyncio.sleep(_PAUSE)
            continue
        yield connection
        await asyncio.sleep(0)


def peer_address(connection: socket.socket) -> str | None:
    """Return the address of a connection's client; None if it is gone or has none."""
    peer = peer_of(connection)
    return None if peer is None else peer[0]


class AcceptingPort(OwnedTasks):
    """A port that clients connect to: of drivers, of feeds, or of the admin page.

    It owns the tasks of its clients. Where clients may use TLS, it accepts one in each iteration of
    the loop, and their handshakes count as connections.

    Args:
        handshakes: connects the sockets of clients that may use TLS; None without TLS.
        protocol: creates the protocol of a client, which calls the function that is given before
            ``_admits``: that ends the count of a handshake.
        limit: counts the connections, and refuses those beyond it.
    """

    def __init__(
        self,
        handshakes: Handshakes | None,
        protocol: Callable[[Callable[[], None]], asyncio.BaseProtocol],
        limit: ConnectionLimit,
    ) -> None:
        self._handshakes = handshakes
        self._protocol = protocol
        self._limit = limit
        self._servers: list[asyncio.Server] = []
        self._handshaking = anyio.CancelScope()
        self._stopped = False

    async def __aexit__(self, *failure: object) -> None:
        self.close()
        with anyio.move_on_after(END_TIMEOUT, shield=True):
            await self._end()
        await super().__aexit__(*failure)

    async def _end(self) -> None:
        """End what is not a task of the port."""

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen on ``port`` of all ``hosts`` and return the port; as ``bind``, raises OSError."""
        if self._handshakes is None:
            for host in hosts:
                server = await asyncio.get_running_loop().create_server(
                    self._uncounted, host, port, backlog=BACKLOG
                )
                self._servers.append(server)
                port = server.sockets[0].getsockname()[1]
            return port
        bound = await bind(hosts, port)
        for listening in bound:
            listening.listen(BACKLOG)
        self.run(self._accept_all, bound, self._handshakes)
        return int(bound[0].getsockname()[1])

    def _uncounted(self) -> asyncio.BaseProtocol:
        """Return the protocol of a client without a handshake that has been counted."""
        return self._protocol(lambda: None)

    async def _connect(
        self, connection: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> bool:
        """Connect a client's socket that another process has accepted; return whether it is.

        Raises OSError.
        """
        if self._handshakes is not None:
            return await self._handshakes.connect(connection, protocol)
        await asyncio.get_running_loop().connect_accepted_socket(protocol, connection)
        return True

    def close(self) -> None:
        """Accept no more clients, and end the handshakes of those that arrive."""
        self._stopped = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._handshaking.cancel()

    def _admits(self, transport: asyncio.WriteTransport, address: str | None) -> bool:
        """Count a client that has connected, or cut its connection and return False.

        It cuts a client beyond the limits, and one accepted in the loop's iteration of the stop.
        """
        now = asyncio.get_running_loop().time()
        if not self._stopped and self._limit.admit(address, now):
            return True
        transport.abort()
        return False

    async def _accept_all(self, bound: Sequence[socket.socket], handshakes: Handshakes) -> None:
        with self._handshaking:
            async with OwnedTasks() as arriving:
                for listening in bound:
                    arriving.run(self._accept_on, listening, handshakes, arriving)
                await anyio.sleep_forever()

    async def _accept_on(
        self, listening: socket.socket, handshakes: Handshakes, arriving: OwnedTasks
    ) -> None:
        with listening:
            async for connection in accept(listening):
                arriving.run(self._arrive, connection, handshakes)

    async def _arrive(self, connection: socket.socket, handshakes: Handshakes) -> None:
        """Count a client and connect it; an error here ends this client and not the port."""
        with connection, ExitStack() as counted:
            address = peer_address(connection)
            if self._limit.admit(address, asyncio.get_running_loop().time()):
                counted.callback(self._limit.release, address)
                await handshakes.connect(connection, lambda: self._protocol(counted.close))
