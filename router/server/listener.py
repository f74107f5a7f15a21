"""The listening socket: accepts clients and ends their connections in bounded time."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from itertools import count
from types import TracebackType
from typing import Self

import structlog

from router.commands.call import Client
from router.commands.node import Counters, Node
from router.server.client_connection import ClientConnection
from shard_client.wire.connection import is_loopback
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.keepalive import probe_peer

log = structlog.get_logger()

_BACKLOG = 1024
_INTERRUPTED_TIMEOUT = 0.5


class _ClientStream(FrameStream):
    """A client's frames; cancels the serving task when the client disconnects."""

    task: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.task is not None:
            self.task.cancel()


class Listener:
    """Listens for drivers and owns their connections; use it as an async context manager.

    Args:
        node: the state that all commands share.
        for_workers: the clients are the other workers of this router; the worker that accepted
            the client has already counted and limited the requests that they pass on.
    """

    def __init__(self, node: Node, *, for_workers: bool = False) -> None:
        self._node = node
        self._for_workers = for_workers
        self._counters = Counters() if for_workers else node.counters
        self._servers: list[asyncio.Server] = []
        self._connections: dict[ClientConnection, asyncio.Task[None]] = {}
        self._ids = count(1)
        self._stopped = False
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_listening()
        for task in self._connections.values():
            task.cancel()
        # The tasks end in any case; an exception of the block propagates unchanged.
        await self._tasks.__aexit__(None, None, None)

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen on ``port`` of all ``hosts`` and return the port; 0 picks one for all hosts.

        Raises:
            OSError: the port is in use or a host is not an address of this machine.
        """
        loop = asyncio.get_running_loop()
        for host in hosts:
            server = await loop.create_server(
                lambda: _ClientStream(self._accept), host, port, backlog=_BACKLOG
            )
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
        self._node.port = port
        return port

    async def listen_privately(self, path: str) -> None:
        """Listen on the Unix socket ``path``; raises OSError."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(
            lambda: _ClientStream(self._accept), path, backlog=_BACKLOG
        )
        self._servers.append(server)

    async def adopt(
        self, connection: socket.socket, connection_id: int, arrived: Callable[[], None]
    ) -> None:
        """Serve a client whose connection another process has accepted.

        Args:
            connection: the client's socket.
            connection_id: the connection's number, unique in the whole router.
            arrived: called just before this process counts the connection.

        Raises:
            OSError: the client has disconnected meanwhile.
        """

        def accept(stream: FrameStream) -> None:
            arrived()
            self._accept(stream, connection_id)

        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: _ClientStream(accept), connection
        )

    def stop_listening(self) -> None:
        """Accept no more clients; existing connections stay open."""
        self._stopped = True
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def drain(self, timeout: float) -> None:
        """Refuse new commands, wait for those in flight, then interrupt the remaining ones.

        Args:
            timeout: seconds to wait for commands in flight.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._node.topology.quiesce(deadline)
        self.stop_listening()
        await self._until_idle(timeout)
        for connection in self._connections:
            connection.interrupt()
        await self._until_idle(_INTERRUPTED_TIMEOUT)

    async def _until_idle(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                for connection in list(self._connections):
                    await connection.idle.wait()
        except TimeoutError:
            log.info("Commands are still in flight", component="NETWORK", after=timeout)

    def _accept(self, stream: FrameStream, connection_id: int | None = None) -> None:
        assert isinstance(stream, _ClientStream)
        assert stream.transport is not None
        if self._stopped:  # accepted in the same iteration of the loop as the stop
            stream.abort()
            return
        counters = self._counters
        if counters.connections >= self._node.max_connections:
            log.warning("Too many connections", component="NETWORK", most=counters.connections)
            stream.abort()
            return
        if not self._for_workers:
            probe_peer(stream.transport)
        peername = stream.transport.get_extra_info("peername")
        peer = peername or ("unknown", 0)
        name = "another worker" if self._for_workers else f"{peer[0]}:{peer[1]}"
        client = Client(
            connection_id or next(self._ids),
            name,
            is_worker=self._for_workers,
            is_local=is_loopback(peername),
        )
        if self._node.access is not None and not self._for_workers:
            client.login = self._node.access.login(name)
        connection = ClientConnection(stream, self._node, client, counters)
        counters.connections += 1
        counters.connections_created += 1
        log.debug("Connection accepted", component="NETWORK", client=client.peer)
        stream.task = self._tasks.create_task(connection.serve())
        self._connections[connection] = stream.task
        stream.task.add_done_callback(lambda _task: self._forget(connection))

    def _forget(self, connection: ClientConnection) -> None:
        self._connections.pop(connection, None)
        self._counters.connections -= 1
        log.debug("Connection ended", component="NETWORK", client=connection.client.peer)
