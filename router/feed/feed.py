"""The feed: its listening socket and its client connections."""

import asyncio
import socket
from collections.abc import Callable

import structlog

from router.accepting_port import AcceptingPort
from router.access.login import Login
from router.access.login_resources import LoginResources
from router.commands.serving_process import ServingProcess
from router.cursors.cursor import Owner
from router.feed.feed_connection import FeedConnection, check_rights, log_client_in
from router.feed.json_lines import heartbeat_line, json_lines
from router.feed.watch import Watch, parse_watch
from router.limits.connection_limit import ConnectionLimit
from router.limits.turns import Turns
from router.parameter import MILLISECONDS
from router.privileges import User
from router.tls.handshake import Handshakes, peer_certificate
from shard_client.errors import CommandError, ErrorCode
from shard_client.wire.connection import probe_peer

log = structlog.get_logger(component="FEED")

_LONGEST_LINE = 1024 * 1024
MOST_CLIENTS = 1000
_EVENTS_A_BATCH = 1000
_AWAIT = 1.0


class FeedPort(AcceptingPort):
    """Sends each client the events of its stream in order, one per line.

    A slow reader delays only its own stream. The end of the stream, an error (as a last line
    ``{"error": …}``) and the router's shutdown close the connection after a whole line
    (docs/feed.md). Use it as an async context manager.

    Args:
        process: the process; the limits of clients apply to their logins.
        most: maximum number of connections.
        handshakes: as for any port.
    """

    def __init__(
        self, process: ServingProcess, *, most: int, handshakes: Handshakes | None
    ) -> None:
        super().__init__(handshakes, self._arriving, ConnectionLimit(most))
        settings = process.settings.feed
        self._cursors = process.cursors
        self._request_wait = settings.request_wait_ms * MILLISECONDS
        self._default = settings.watch
        self._access = process.access
        self._limits = process.client_limits
        # A client can make the router hold twice as many bytes while none of its lines is read.
        self._held = self._limits.message_size_before_login
        self._turns = Turns()

    async def adopt(self, connection: socket.socket) -> None:
        """Serve a client whose connection another process has accepted; raises OSError."""
        await self._connect(connection, self._uncounted)

    def _arriving(self, arrived: Callable[[], None]) -> asyncio.StreamReaderProtocol:
        """Return the protocol of a client; it calls ``arrived`` when connected."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            arrived()
            lines = FeedConnection(reader, writer)
            if self._admits(lines.transport, lines.address):
                self.run(self._serve, lines)

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=self._held), accept)

    async def _serve(self, lines: FeedConnection) -> None:
        try:
            # Probes distinguish a half-closed connection from one whose client is gone.
            probe_peer(lines.transport, idle=10, interval=5, times=3)
            await self._answer(lines)
        except ConnectionError as error:
            log.info("Feed's client is gone", client=lines.peer, error=str(error))
        except Exception:  # one feed's bug must not end the others
            log.exception("Unexpected error in a feed", client=lines.peer)
        finally:
            await lines.close()
            self._limit.release(lines.address)

    async def _answer(self, lines: FeedConnection) -> None:
        try:
            user, watch = await self._read_request(lines)
            if user is not None:
                check_rights(user, watch)
            await self._write_stream(watch, lines, user)
        except CommandError as error:
            await lines.write_error(error)

    async def _read_request(self, lines: FeedConnection) -> tuple[User | None, Watch]:
        """Return the user, once logged in, and what the client asks for. Raises CommandError."""
        try:
            user = None if self._access is None else await self._log_in(self._access, lines)
            return user, parse_watch(await self._request(lines) or self._default)
        except RecursionError:
            reason = "the line nests too many documents"
        except ValueError as error:
            reason = str(error)
        raise CommandError(ErrorCode.FailedToParse, reason)

    async def _log_in(self, access: LoginResources, lines: FeedConnection) -> User:
        """Let the client log in; raises ValueError, CommandError."""
        limits = self._limits
        login = Login(access, lines.peer, peer_certificate(lines.transport))
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

    async def _request(self, lines: FeedConnection) -> bytes:
        """Return the client's request line, empty if it sends none in time."""
        try:
            wait = self._request_wait if self._access is None else self._limits.login_time
            async with asyncio.timeout(wait):
                return await lines.read(_LONGEST_LINE)
        except TimeoutError:
            return b""

    async def _write_stream(self, watch: Watch, lines: FeedConnection, user: User | None) -> None:
        name = None if user is None else str(user)
        owner = Owner(user=name, client=lines.address, connection=f"{lines.peer} feed")
        cursor, batch = await self._cursors.open(watch.request, owner, user=user)
        now = asyncio.get_running_loop().time
        wait, wrote_at = min(_AWAIT, watch.heartbeat or _AWAIT), now()
        try:
            if user is not None:
                check_rights(user, watch)  # the rights may have changed during the opening
            while True:
                async for events in json_lines(batch.events, watch.form, self._turns.take):
                    await lines.write(events)
                if batch.events:
                    wrote_at = now()
                elif watch.heartbeat and not batch.closed and now() - wrote_at >= watch.heartbeat:
                    await lines.write(heartbeat_line(batch.pbrt, watch.form))
                    wrote_at = now()
                else:
                    lines.check_connection()
                if batch.closed:
                    return
                with self._cursors.checkout(cursor.cursor_id, owner) as held:
                    batch = await held.next_batch(_EVENTS_A_BATCH, wait)
        finally:
            self._cursors.kill([cursor.cursor_id])
