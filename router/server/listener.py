"""The listening socket: accepts clients and ends their connections in bounded time."""

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import anyio
import structlog

from router.accepting_port import BACKLOG, AcceptingPort
from router.access.login import Login
from router.commands.client import Client
from router.commands.serving_process import ServingProcess
from router.counters.process_counters import Counters
from router.limits.connection_limit import ConnectionLimit
from router.server.client_connection import ClientConnection
from router.server.incoming import PortShares
from router.tls.handshake import Handshakes, check_first_header, peer_certificate
from shard_client.wire.connection import is_loopback, probe_peer
from shard_client.wire.frame_protocol import FrameStream

log = structlog.get_logger(component="NETWORK")

_INTERRUPTED_TIMEOUT = 0.5
_CHECKS_A_DEADLINE = 8
_SHORTEST_CHECK, _LONGEST_CHECK = 0.02, 1.0


class _ClientStream(FrameStream):
    """A client's frames; cancels what serves it when the client disconnects."""

    serving: anyio.CancelScope | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.serving is not None:
            self.serving.cancel()


class Listener(AcceptingPort):
    """Listens for drivers and owns their connections; use it as an async context manager.

    Args:
        process: the state that all commands share.
        for_workers: the clients are the other workers of this router; the worker that accepted
            the client has already counted and limited the requests that they pass on.
        handshakes: as for any port.
    """

    def __init__(
        self,
        process: ServingProcess,
        *,
        for_workers: bool = False,
        handshakes: Handshakes | None = None,
    ) -> None:
        limits = process.client_limits
        limit = ConnectionLimit(limits.connections, limits.connections_per_client, limits.exempt)
        if for_workers:
            limit = ConnectionLimit(sys.maxsize)
        super().__init__(handshakes, self._stream, limit)
        self._process = process
        self._for_workers = for_workers
        self._counters = Counters() if for_workers else process.counters
        self._connections: set[ClientConnection] = set()
        self._ids = count(1)
        self._shared = PortShares(limits, self._counters)
        shortest = limits.shortest_time / _CHECKS_A_DEADLINE
        self._next_check: asyncio.TimerHandle | None = None
        self._check_interval = max(_SHORTEST_CHECK, min(_LONGEST_CHECK, shortest))

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen as any port does, and report the port to the commands; raises OSError."""
        self._process.server.port = await super().listen(hosts, port)
        return self._process.server.port

    async def listen_privately(self, path: str) -> None:
        """Listen on the Unix socket ``path``; raises OSError."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(
            lambda: _ClientStream(self._accept), path, backlog=BACKLOG
        )
        self._servers.append(server)

    async def adopt(
        self, connection: socket.socket, connection_id: int, ended: Callable[[], None]
    ) -> None:
        """Serve a client whose connection another process has accepted; ``ended`` tells its end.

        The number ``connection_id`` is unique in the whole router. Raises OSError: the client has
        disconnected meanwhile.
        """

        def stream() -> _ClientStream:
            created = self._stream(lambda: None, connection_id)
            created.when_closed(ended)
            return created

        if not await self._connect(connection, stream):
            ended()

    async def drain(self, timeout: float) -> None:
        """Refuse new commands, wait ``timeout`` seconds for those in flight, interrupt the rest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        self._process.server.topology.quiesce(deadline)
        self.close()
        await self._until_idle(timeout)
        for connection in self._connections:
            connection.interrupt()
        await self._until_idle(_INTERRUPTED_TIMEOUT)

    def _stream(
        self, arrived: Callable[[], None], connection_id: int | None = None
    ) -> _ClientStream:
        """Return the stream of a client; it calls ``arrived`` when connected."""

        def accept(stream: FrameStream) -> None:
            arrived()
            self._accept(stream, connection_id)

        begins = check_first_header if self._handshakes is None else None
        return _ClientStream(accept, begins=begins)

    async def _until_idle(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                for connection in list(self._connections):
                    await connection.idle.wait()
        except TimeoutError:
            log.info("Commands are still in flight", after=timeout)

    def _accept(self, stream: FrameStream, connection_id: int | None = None) -> None:
        assert isinstance(stream, _ClientStream)
        assert stream.transport is not None
        peername = stream.transport.get_extra_info("peername")
        address = peername[0] if peername and not self._for_workers else None
        if not self._admits(stream.transport, address):
            return
        try:
            self._begin(stream, address, peername, connection_id)
        except BaseException:
            self._limit.release(address)
            stream.transport.abort()
            raise

    def _begin(
        self, stream: _ClientStream, address: str | None, peername: Any, connection_id: int | None
    ) -> None:
        """Serve a client that has been counted."""
        assert stream.transport is not None
        if not self._for_workers:
            probe_peer(stream.transport)
        peer = peername or ("unknown", 0)
        name = "another worker" if self._for_workers else f"{peer[0]}:{peer[1]}"
        client = Client(
            connection_id or next(self._ids),
            name,
            is_worker=self._for_workers,
            is_local=is_loopback(peername),
        )
        if self._process.access is not None and not self._for_workers:
            certificate = peer_certificate(stream.transport)
            client.login = Login(self._process.access, name, certificate)
        connection = ClientConnection(stream, self._process, client, self._shared)
        self._counters.connections += 1
        self._counters.connections_created += 1
        self._log("Connection accepted", 22943, client)
        self._connections.add(connection)
        self._schedule_check()
        self.run(self._serve, connection, stream, address)

    async def _serve(
        self, connection: ClientConnection, stream: _ClientStream, address: str | None
    ) -> None:
        try:
            # A scope of its own: a task that ends by its own cancellation would end all others.
            with anyio.CancelScope() as stream.serving:
                await connection.serve()
        finally:
            # Without this cycle, all is freed now, not by the collector's next run.
            stream.serving = None
            self._connections.discard(connection)
            self._counters.connections -= 1
            self._limit.release(address)
            self._log("Connection ended", 22944, connection.client)

    def _log(self, event: str, number: int, client: Client) -> None:
        log.debug(
            event,
            id=number,
            remote=client.peer,
            connectionId=client.connection_id,
            connectionCount=self._counters.connections,
        )

    def _schedule_check(self) -> None:
        """Check the clients' deadlines soon; without a client, an idle process does not wake."""
        if self._next_check is None and self._connections and not self._for_workers:
            loop = asyncio.get_running_loop()
            self._next_check = loop.call_later(self._check_interval, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Cut the connections of clients that take too long."""
        self._next_check = None
        now = asyncio.get_running_loop().time()
        try:
            for connection in list(self._connections):
                connection.check_deadlines(now)
        finally:
            self._schedule_check()
