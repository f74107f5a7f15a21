"""The feed: its listening socket and its client connections."""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import structlog
from bson import json_util

from router.change_stream.log_reader import Batch
from router.cursors.owner import Owner
from router.cursors.registry import CursorRegistry
from router.feed.watch import Watch, parse_watch
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.wire.documents import decode
from shard_client.wire.keepalive import probe_peer

log = structlog.get_logger()

_LONGEST_LINE = 1024 * 1024
_EVENTS_A_BATCH = 1000
_EVENTS_A_TURN = 50
_AWAIT = 1.0
_CLOSE_TIMEOUT = 2.0


class Feed:
    """Sends each client the events of its stream in order, one per line.

    A slow reader delays only its own stream. The end of the stream, an error (as a last line
    ``{"error": …}``) and the router's shutdown close the connection after a whole line
    (docs/design.md#feed-and-spark). Use it as an async context manager.

    Args:
        cursors: the registry in which streams are opened.
        request_wait: seconds to wait for a client's request line.
        default: the request of a client that sends no line.
        max_clients: the most connections at a time.
    """

    def __init__(
        self,
        cursors: CursorRegistry,
        *,
        request_wait: float = 0.2,
        default: Mapping[str, Any] | None = None,
        max_clients: int = 1000,
    ) -> None:
        self._cursors = cursors
        self._request_wait = request_wait
        self._default = dict(default or {})
        self._max_clients = max_clients
        self._servers: list[asyncio.Server] = []
        self._stopped = False
        self._clients: set[asyncio.Task[None]] = set()
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
        self._stopped = True
        for server in self._servers:
            server.close()
        for task in self._clients:
            task.cancel()
        # The tasks end in any case; an exception of the block propagates unchanged.
        await self._tasks.__aexit__(None, None, None)

    async def listen(self, hosts: Sequence[str], port: int) -> int:
        """Listen on ``port`` of all ``hosts`` and return the port; 0 picks one for all hosts.

        Raises:
            OSError: the port is in use or a host is not an address of this machine.
        """
        for host in hosts:
            server = await asyncio.start_server(self._accept, host, port, limit=_LONGEST_LINE)
            self._servers.append(server)
            port = server.sockets[0].getsockname()[1]
        return port

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a client whose connection another process has accepted; raises OSError."""
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader, self._accept), connection
        )

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopped:  # accepted in the same iteration of the loop as the stop
            writer.transport.abort()
            return
        if len(self._clients) >= self._max_clients:
            log.warning("Too many feeds", component="FEED", most=self._max_clients)
            writer.transport.abort()
            return
        task = self._tasks.create_task(self._serve(reader, writer))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        try:
            # Probes distinguish a half-closed connection from one whose client is gone.
            probe_peer(writer.transport, idle=10, interval=5, times=3)
            await self._answer(reader, writer)
        except ConnectionError as error:
            log.info("Feed's client is gone", component="FEED", client=peer, error=str(error))
        except Exception:  # one feed's bug must not end the others
            log.exception("Unexpected error in a feed", component="FEED", client=peer)
        finally:
            await _close(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            watch = parse_watch(await self._request(reader) or self._default)
            await self._write_stream(watch, writer)
        except ValueError as error:
            await _write_error(writer, CommandError(ErrorCode.FailedToParse, str(error)))
        except CommandError as error:
            await _write_error(writer, error)

    async def _request(self, reader: asyncio.StreamReader) -> bytes:
        """Return the client's request line, empty if it sends none in time."""
        try:
            async with asyncio.timeout(self._request_wait):
                return (await reader.readline()).strip()
        except TimeoutError:
            return b""

    async def _write_stream(self, watch: Watch, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        owner = Owner(client=peer[0] if peer else None)
        cursor, batch = await self._cursors.open(watch.request, owner)
        now = asyncio.get_running_loop().time
        wait, wrote_at = min(_AWAIT, watch.heartbeat or _AWAIT), now()
        try:
            await _write_events(batch, watch, writer)
            while not batch.closed:
                async with self._cursors.checkout(cursor.cursor_id, owner) as held:
                    batch = await held.next_batch(_EVENTS_A_BATCH, wait)
                await _write_events(batch, watch, writer)
                if batch.events:
                    wrote_at = now()
                elif watch.heartbeat and not batch.closed and now() - wrote_at >= watch.heartbeat:
                    await _write_place(batch, watch, writer)
                    wrote_at = now()
        finally:
            self._cursors.kill([cursor.cursor_id], owner)


async def _write_events(batch: Batch, watch: Watch, writer: asyncio.StreamWriter) -> None:
    """Write a batch a few events at a time, so that encoding does not block the event loop."""
    if not batch.events:
        _check_peer(writer)
    for start in range(0, len(batch.events), _EVENTS_A_TURN):
        lines = [
            json_util.dumps(decode(event), json_options=watch.form)
            for event in batch.events[start : start + _EVENTS_A_TURN]
        ]
        lines.append("")
        writer.write("\n".join(lines).encode())
        await writer.drain()
        await asyncio.sleep(0)


async def _write_place(batch: Batch, watch: Watch, writer: asyncio.StreamWriter) -> None:
    """Write a ``resolved`` line with the stream's current resume token."""
    line = json_util.dumps({"resolved": decode(batch.pbrt)}, json_options=watch.form)
    writer.write(line.encode() + b"\n")
    await writer.drain()


async def _write_error(writer: asyncio.StreamWriter, error: CommandError) -> None:
    reply = error.to_reply()
    del reply["ok"]
    writer.write(json.dumps({"error": reply}, default=str).encode() + b"\n")
    await writer.drain()


def _check_peer(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if connection else 0
    if error or writer.is_closing():
        raise ConnectionResetError(error, "the client is gone")


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await writer.wait_closed()
    except (TimeoutError, OSError):
        writer.transport.abort()
