"""A connection to a server: one request at a time, raw or decoded."""

import asyncio
import os
import platform
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import nullcontext
from functools import cache, partial
from importlib.metadata import version
from ipaddress import ip_address
from itertools import count
from typing import Any, Final, Self

from shard_client.errors import CommandError, ErrorCode, NetworkError, ProtocolError, plain_text
from shard_client.wire.authentication import Credentials, log_in
from shard_client.wire.documents import LENIENT, decode, encode
from shard_client.wire.frame_protocol import FrameStream
from shard_client.wire.frames import build_msg, more_to_come, reply_body, with_ids

Address = tuple[str, int]
"""Host and port; a host that begins with a slash is the path of a Unix socket."""

_DEFAULT_PORT = 27017
# Batches of a MiB reuse the same receive buffer.
_KEEP = 2 * 1024 * 1024

_KEEPALIVE = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")

APP_NAME = "mergerouter"
MONITOR_NAME = "mergerouter monitor"
"""Application names that distinguish streams' connections from monitoring connections."""

_DIRECTLY = "directly to a shard"
"""Part of the message with which MongoDB 8.0 and newer refuse a read on a shard itself."""

_HELLO: Final = {"hello": 1}
_LARGEST_ID = 0x7FFFFFFF

_MOST_SAID = 200
"""Maximum number of characters quoted from a refusal, which contains the command."""


def parse_address(text: str) -> Address:
    """Parse ``host``, ``host:port`` or ``[ipv6]:port``; raises ValueError."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"an address must be host:port or [ipv6]:port, not {text!r}")
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        if not port:
            raise ValueError(f"an address must be host:port or [ipv6]:port, not {text!r}")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"an address must be host:port or [ipv6]:port, not {text!r}")
    return host, int(port) if port else _DEFAULT_PORT


def format_address(address: Address) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(peername: Any) -> bool:
    """Return whether a socket's peer name is a loopback address; False if it is no IP address."""
    if not isinstance(peername, tuple) or not peername:
        return False
    try:
        address = ip_address(peername[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def probe_peer(
    transport: asyncio.BaseTransport, *, idle: int = 120, interval: int = 10, times: int = 6
) -> None:
    """Enable TCP keepalive: the kernel probes a silent peer and drops the connection to a dead one.

    Args:
        transport: the connection; one without a socket (a simulated one) is left unchanged.
        idle: seconds of silence before the first probe.
        interval: seconds between probes.
        times: number of unanswered probes after which the connection ends.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(_KEEPALIVE, (idle, interval, times), strict=True):
        option = getattr(socket, name, None)  # not every system has them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Connection:
    """A connection after its hello, created by ``open``; at most one request is in flight.

    ``hello`` is the server's latest decoded hello reply, ``address`` the address of the
    server. When the connection is cut, a pending request raises
    NetworkError. A request that is cancelled or times out closes the connection, since its reply
    can still arrive.
    """

    def __init__(self, address: Address, stream: FrameStream) -> None:
        self.address = address
        self.hello: dict[str, Any] = {}
        self._stream = stream
        self._cut = False
        self._request_ids = count(1)
        self._expected = 0
        self.busy = False
        """Whether a request is in flight."""
        self._credentials: Credentials | None = None

    @classmethod
    async def open(
        cls,
        address: Address,
        *,
        timeout: float,
        tls: ssl.SSLContext | None = None,
        app_name: str = APP_NAME,
        credentials: Credentials | None = None,
    ) -> Self:
        """Connect, exchange a hello and log in within ``timeout`` seconds.

        Without ``credentials`` there is no login. Raises NetworkError, CommandError; 18 if the
        server refuses the login.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        host, port = address
        try:
            async with asyncio.timeout_at(deadline):
                if host.startswith("/"):
                    _, stream = await loop.create_unix_connection(
                        lambda: FrameStream(keep=_KEEP), host
                    )
                else:
                    _, stream = await loop.create_connection(
                        lambda: FrameStream(keep=_KEEP),
                        host,
                        port,
                        ssl=tls,
                        server_hostname=host if tls else None,
                    )
                    assert stream.transport is not None
                    probe_peer(stream.transport)
        except TimeoutError as error:
            raise NetworkError(f"connecting to {format_address(address)} timed out") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            cause = plain_text(error)
            if isinstance(error, ConnectionError) and error.errno is not None:
                cause = os.strerror(error.errno)  # asyncio's text is about the call
            cause = cause or (
                "the connection ended during the TLS handshake" if tls else type(error).__name__
            )
            raise NetworkError(f"cannot connect to {format_address(address)}: {cause}") from error
        connection = cls(address, stream)
        try:
            left = max(0.001, deadline - loop.time())
            await connection.greet(left, _first_hello(app_name))
            if credentials is not None:
                await connection.log_in(credentials, max(0.001, deadline - loop.time()))
        except BaseException:
            connection.abort()
            raise
        return connection

    @property
    def closed(self) -> bool:
        """True once the connection is closed or was cut."""
        return self._cut or self._stream.closed

    @property
    def from_loopback(self) -> bool:
        """Whether the server sees this connection as coming from its own machine."""
        transport = self._stream.transport
        return transport is not None and is_loopback(transport.get_extra_info("peername"))

    async def greet(self, timeout: float, command: Mapping[str, Any] = _HELLO) -> None:
        """Exchange another hello within ``timeout`` seconds; updates ``hello``.

        Raises NetworkError, CommandError.
        """
        self.hello = await self.command("admin", command, timeout=timeout)

    async def log_in(self, credentials: Credentials, timeout: float) -> None:
        """Log in within ``timeout`` seconds; after an error, ``abort`` the connection.

        Raises NetworkError, CommandError; 18 if the server refuses the login.
        """
        peer = format_address(self.address)
        try:
            await log_in(self.command, credentials, timeout=timeout)
        except CommandError as error:
            raise CommandError(
                error.code, f"cannot log in to {peer} as {credentials}: {error.message}"
            ) from error
        except ProtocolError as error:
            raise self._broken(error) from error
        self._credentials = credentials

    def explained(self, error: CommandError) -> CommandError:
        """Return a reply's error; add to 13 the router's user, what it lacks, and a remedy.

        The client whose request led to the command has other rights, and often another user.
        """
        if error.code != ErrorCode.Unauthorized or self._credentials is None:
            return error
        lacks = "what it lacks: mergerouter check-config names it"
        if _DIRECTLY in error.message:
            lacks = "the role directShardOperations, which MongoDB 8.0 and newer require"
        said = error.message[:_MOST_SAID] + "…" * (len(error.message) > _MOST_SAID)
        message = (
            f"{format_address(self.address)} refuses the router's user {self._credentials}: {said} "
            f"Grant that user {lacks} (docs/security.md)"
        )
        return error.with_labels(message=message)

    def free_buffer(self) -> None:
        """Free the buffer that large replies have grown; call this only between two requests."""
        self._stream.shrink()

    def when_closed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the connection has ended."""
        self._stream.when_closed(callback)

    async def command(
        self, database: str, command: Mapping[str, Any], *, timeout: float | None
    ) -> dict[str, Any]:
        """Run ``command`` on ``database`` and return the decoded reply.

        ``timeout`` is in seconds. Raises CommandError if the reply is not ok, NetworkError.
        """
        body = await self.command_raw(encode({**command, "$db": database}), timeout=timeout)
        try:
            reply = decode(body, LENIENT)
            if not reply.get("ok"):
                raise self.explained(CommandError.from_reply(reply))
        except ProtocolError as error:
            raise self._broken(error) from error
        return reply

    async def command_raw(self, body: bytes, *, timeout: float | None) -> bytes:
        """Send the raw command (with its ``$db``) and return the raw body of the reply.

        ``timeout`` is in seconds. Raises NetworkError; does not check whether the command failed.
        """
        self.send_raw(body)
        return await self.receive_raw(timeout=timeout)

    def send_raw(self, body: bytes) -> None:
        """Send the raw command; call ``receive_raw`` next. Raises NetworkError."""
        request_id = next(self._request_ids) & _LARGEST_ID
        message = build_msg(body, request_id=request_id)
        self._begin(request_id)
        try:
            self._stream.write(message)
        except BaseException:
            self.busy = False
            raise

    async def receive_raw(self, *, timeout: float | None) -> bytes:
        """Return the raw body of the reply to ``send_raw``'s command, as ``command_raw`` does."""
        try:
            return await self._receive(partial(reply_body, response_to=self._expected), timeout)
        finally:
            self.busy = False

    async def exchange(self, message: bytes) -> AsyncGenerator[bytes, None]:
        """Forward one whole uncompressed frame under a new request id; yield the replies.

        The replies are whole uncompressed frames with the server's ids; the caller rewrites
        responseTo. The generator ends after the first reply without moreToCome, or at once if the
        request itself has moreToCome. Ending it earlier closes the connection; ``aclose`` it to
        control when. Raises NetworkError.
        """
        request_id = next(self._request_ids) & _LARGEST_ID
        self._begin(request_id)
        more = not more_to_come(message)
        try:
            self._stream.write_parts(with_ids(message, request_id=request_id, response_to=0))
            while more:
                frame = await self._receive(bytes, None)
                more = more_to_come(frame)
                if not more:
                    self.busy = False
                yield frame
        finally:
            if more:
                self.abort()
            self.busy = False

    def abort(self) -> None:
        """Cut the connection at once."""
        self._cut = True
        self._stream.abort()

    def _begin(self, request_id: int) -> None:
        if self.busy:
            raise RuntimeError("another request is in flight on this connection")
        self.busy = True
        self._expected = request_id

    async def _receive(self, take: Callable[[memoryview], bytes], timeout: float | None) -> bytes:
        """Return the result of ``take`` for the next frame; any error ends the connection."""
        # A timeout without a limit costs 2 µs, and no getMore has one.
        limit = nullcontext() if timeout is None else asyncio.timeout(timeout)
        try:
            async with limit:
                reply = await self._stream.receive(take)
        except TimeoutError as error:
            self.abort()
            peer = format_address(self.address)
            raise NetworkError(f"{peer} did not answer within {timeout:.3g} s") from error
        except ProtocolError as error:
            raise self._broken(error) from error
        except BaseException:
            self.abort()
            raise
        if reply is None:
            reason = self._stream.lost_error or "closed by the peer"
            raise NetworkError(f"connection to {format_address(self.address)} lost: {reason}")
        return reply

    def _broken(self, error: ProtocolError) -> NetworkError:
        self.abort()
        return NetworkError(f"{format_address(self.address)} broke the protocol: {error}")


@cache
def _first_hello(app_name: str) -> Mapping[str, Any]:
    """Return the first command of a connection, with the metadata of this client."""
    metadata = {
        "application": {"name": app_name},
        "driver": {"name": "mergerouter", "version": version("mergerouter")},
        "os": {"type": platform.system(), "architecture": platform.machine()},
        "platform": f"{platform.python_implementation()} {platform.python_version()}",
    }
    return {"hello": 1, "helloOk": True, "client": metadata}
