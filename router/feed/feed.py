"""The feed: its listening socket and its client connections."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
import structlog
from bson import json_util

from router.access.login import AccessControl, Login
from router.access.users import User
from router.commands.serving_process import ServingProcess
from router.config.settings import Feed
from router.cursors.cursor import Owner
from router.feed.lines import Lines, check_rights, log_client_in
from router.feed.watch import Watch, parse_watch
from router.limits.client_limits import ConnectionCounts
from router.ports import AcceptingPort, uncounted
from router.stream.event_log import cut
from router.stream.log_reader import Batch
from router.tls.handshake import Handshakes, peer_certificate
from shard_client.errors import CommandError, ErrorCode
from shard_client.wire.connection import probe_peer
from shard_client.wire.documents import LENIENT, decode

log = structlog.get_logger(component="FEED")

_MS = 0.001
_LONGEST_LINE = 1024 * 1024
MOST_CLIENTS = 1000
_EVENTS_A_BATCH = 1000
_TURN_BYTES = 16 * 1024
"""Bytes of events that are encoded without a pause: up to 2 ms for small values."""
_LARGE_EVENT = 64 * 1024
"""Bytes of an event from which a thread encodes it."""
_AWAIT = 1.0
_CLOSE_TIMEOUT = 2.0


class FeedPort(AcceptingPort):
    """Sends each client the events of its stream in order, one per line.

    A slow reader delays only its own stream. The end of the stream, an error (as a last line
    ``{"error": …}``) and the router's shutdown close the connection after a whole line
    (docs/feed.md). Use it as an async context manager.

    Args:
        process: the process; the limits of clients apply to their logins.
        settings: the wait for a client's request, and the request of one that sends none.
        most: maximum number of connections.
        handshakes: connects the sockets of clients that may use TLS; None without TLS.
    """

    def __init__(
        self,
        process: ServingProcess,
        settings: Feed,
        *,
        most: int = MOST_CLIENTS,
        handshakes: Handshakes | None = None,
    ) -> None:
        super().__init__(handshakes, self._arriving, ConnectionCounts(most))
        self._cursors = process.cursors
        self._request_wait = settings.request_wait_ms * _MS
        self._default = settings.watch
        self._access = process.access
        self._limits = process.client_limits
        # A client can make the router hold twice as many bytes while none of its lines is read.
        self._held = self._limits.message_size_before_login

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a client whose connection another process has accepted; raises OSError."""
        await self._connect(connection, lambda: self._arriving(uncounted))

    def _arriving(self, arrived: Callable[[], None]) -> asyncio.StreamReaderProtocol:
        """Return the protocol of a client; it calls ``arrived`` when connected."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived()
            peer = writer.get_extra_info("peername")
            address = peer[0] if peer else None
            if self._admits(writer.transport, address):
                self.run(self._serve, reader, writer, address)

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=self._held), accept)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str | None
    ) -> None:
        peer = writer.get_extra_info("peername")
        try:
            # Probes distinguish a half-closed connection from one whose client is gone.
            probe_peer(writer.transport, idle=10, interval=5, times=3)
            await self._answer(reader, writer)
        except ConnectionError as error:
            log.info("Feed's client is gone", client=peer, error=str(error))
        except Exception:  # one feed's bug must not end the others
            log.exception("Unexpected error in a feed", client=peer)
        finally:
            await _close(writer)
            self._counts.release(address)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = Lines(reader, writer)
        try:
            user, watch = await self._read_request(lines, writer)
            if user is not None:
                check_rights(user, watch)
            await self._write_stream(watch, writer, user)
        except CommandError as error:
            await lines.write_error(error)

    async def _read_request(
        self, lines: Lines, writer: asyncio.StreamWriter
    ) -> tuple[User | None, Watch]:
        """Return the user, once logged in, and what the client asks for. Raises CommandError."""
        try:
            user = None if self._access is None else await self._log_in(self._access, lines, writer)
            return user, parse_watch(await self._request(lines) or self._default)
        except RecursionError:
            reason = "the line nests too many documents"
        except ValueError as error:
            reason = str(error)
        raise CommandError(ErrorCode.FailedToParse, reason)

    async def _log_in(
        self, access: AccessControl, lines: Lines, writer: asyncio.StreamWriter
    ) -> User:
        """Let the client log in; raises ValueError, CommandError."""
        limits, certificate = self._limits, peer_certificate(writer.transport)
        login = Login(access, _client_of(writer), certificate)
        try:
            async with asyncio.timeout(limits.login_time + limits.failed_login_delay):
                return await log_client_in(login, lines, self._held)
        except TimeoutError:
            raise CommandError(
                ErrorCode.AuthenticationFailed,
                f"Authentication failed: no login within {limits.login_time:g} s",
            ) from None
        finally:
            login.close()

    async def _request(self, lines: Lines) -> bytes:
        """Return the client's request line, empty if it sends none in time."""
        try:
            wait = self._request_wait if self._access is None else self._limits.login_time
            async with asyncio.timeout(wait):
                return await lines.read(_LONGEST_LINE)
        except TimeoutError:
            return b""

    async def _write_stream(
        self, watch: Watch, writer: asyncio.StreamWriter, user: User | None
    ) -> None:
        name, peer = None if user is None else str(user), writer.get_extra_info("peername")
        host = peer[0] if peer else None
        owner = Owner(user=name, client=host, connection=f"{_client_of(writer)} feed")
        cursor, batch = await self._cursors.open(watch.request, owner, user=user)
        now = asyncio.get_running_loop().time
        wait, wrote_at = min(_AWAIT, watch.heartbeat or _AWAIT), now()
        try:
            if user is not None:
                check_rights(user, watch)  # the rights may have changed during the opening
            await _write_events(batch, watch, writer)
            while not batch.closed:
                with self._cursors.checkout(cursor.cursor_id, owner) as held:
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
    """Write a batch in turns of the event loop, so that encoding does not block the loop."""
    if not batch.events:
        _check_peer(writer)
    left = batch.events
    while left:
        events, size = cut(left, _TURN_BYTES, first=True)
        left = left[len(events) :]
        if size < _LARGE_EVENT:
            lines = _encode(events, watch)
        else:
            lines = await asyncio.to_thread(_encode, events, watch)
        writer.write(lines)
        await writer.drain()
        await asyncio.sleep(0)


def _encode(events: Sequence[bytes], watch: Watch) -> bytes:
    """Return the lines of events."""
    form = watch.form
    lines = [json_util.dumps(decode(event, LENIENT), json_options=form) for event in events]
    return "\n".join([*lines, ""]).encode()


async def _write_place(batch: Batch, watch: Watch, writer: asyncio.StreamWriter) -> None:
    """Write a ``resolved`` line with the stream's current resume token."""
    line = json_util.dumps({"resolved": decode(batch.pbrt)}, json_options=watch.form)
    writer.write(line.encode() + b"\n")
    await writer.drain()


def _client_of(writer: asyncio.StreamWriter) -> str:
    """Return a client's address and port."""
    peer = writer.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if peer else "unknown"


def _check_peer(writer: asyncio.StreamWriter) -> None:
    if writer.is_closing():  # its socket may be closed, and has no options then
        raise ConnectionResetError("the client is gone")
    connection = writer.get_extra_info("socket")
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if connection else 0
    if error:
        raise ConnectionResetError(error, "the client is gone")


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a client's connection, also if its task is being cancelled, in bounded time."""
    writer.close()
    with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True) as closing, suppress(OSError):
        await writer.wait_closed()
    if closing.cancelled_caught:
        writer.transport.abort()
