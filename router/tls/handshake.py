"""Clients with and without TLS on one port: the first bytes show which a client uses.

They stay in the socket (MSG_PEEK). A connection without TLS then has the same transport as without
this module, with nothing in between.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
import structlog

from shard_client.errors import ErrorCode, ProtocolError
from shard_client.wire.tls import Certificate

log = structlog.get_logger(component="NETWORK")

_SHUTDOWN_SECONDS = 2.0
_PEEKED = 3
_HANDSHAKE, _MAJOR, _MINORS = 0x16, 3, range(1, 5)
"""The first bytes of a TLS connection: a handshake record and its version (RFC 8446, 5.1). As the
length of a MongoDB message they stand for 66,326 bytes or more, too long for a first message."""

ONLY_TLS = "The server is configured to only allow SSL connections"
"""mongos's message for a client without TLS where TLS is required."""

_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no SSL certificate provided by peer; connection rejected",
    "UNSUPPORTED_PROTOCOL": "SSL handshake failed, as client requested disabled protocol",
    "NO_SHARED_CIPHER": "SSL handshake failed: the client offers none of the server's ciphers",
}
"""Messages by OpenSSL's name of the reason; mongos's own where it has one."""


@dataclass(frozen=True, slots=True)
class Handshakes:
    """Turns accepted sockets into connections, with or without TLS.

    Args:
        context: returns the context of the next connection.
        required: whether clients without TLS are refused.
        timeout: seconds from a connection's acceptance to the end of its handshake.
    """

    context: Callable[[], ssl.SSLContext]
    required: bool
    timeout: float = 10.0

    async def connect(
        self, connection: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> bool:
        """Connect a client's socket to a protocol, after the handshake if the client uses TLS.

        A client without TLS where TLS is required, and one whose handshake fails, is refused: its
        connection is closed and the cause logged. The accepted socket is in non-blocking mode, and
        this call's to close. Return whether the protocol is connected.
        """
        host_port = peer_of(connection)
        peer = "unknown" if host_port is None else "{}:{}".format(*host_port)
        uses_tls = False
        try:
            async with asyncio.timeout(self.timeout):
                uses_tls = await _begins_handshake(connection)
                if not uses_tls and self.required:
                    raise ssl.SSLError(ONLY_TLS)
                await self._adopt(connection, protocol, self.context() if uses_tls else None)
        except TimeoutError:
            log_refused_client(
                peer, f"SSL handshake failed: it took longer than {self.timeout:g} s"
            )
        except ConnectionError:
            if uses_tls:
                log_refused_client(
                    peer, "SSL handshake failed: the client has ended the connection"
                )
        except OSError as error:
            log_refused_client(peer, describe(error))
        else:
            return True
        finally:
            connection.close()
        return False

    async def _adopt(
        self,
        connection: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext | None,
    ) -> None:
        times = {"ssl_handshake_timeout": self.timeout, "ssl_shutdown_timeout": _SHUTDOWN_SECONDS}
        adopted = connection.dup()
        adopted.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, adopted, ssl=context, **({} if context is None else times)
            )
        except BaseException:
            adopted.close()
            raise


def peer_certificate(transport: asyncio.BaseTransport) -> Certificate | None:
    """Return the verified certificate of a connection's client; None without one."""
    session = transport.get_extra_info("ssl_object")
    if session is None or session.context.verify_mode == ssl.CERT_NONE:
        return None
    der = session.getpeercert(binary_form=True)
    if der is None:
        return None
    try:
        return Certificate.of_peer(der)
    except ValueError as error:  # stricter than OpenSSL
        log.warning("Cannot read a client's certificate", error=str(error))
        return None


def describe(error: OSError) -> str:
    """Return the cause of a failed handshake, with mongos's message where it has one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"SSL peer certificate validation failed: {error.verify_message}"
    reason = getattr(error, "reason", None)
    if reason in _REASONS:
        return _REASONS[reason]
    if isinstance(error, ssl.SSLError) and reason:
        return f"SSL handshake failed: {reason.lower().replace('_', ' ')}"
    return str(error.args[0]) if len(error.args) == 1 else str(error)


async def _begins_handshake(connection: socket.socket) -> bool:
    """Wait for the first bytes; return whether they begin a TLS handshake.

    After the first of them, the socket does not count as readable before all have come
    (SO_RCVLOWAT): a client that sends no more costs no more than one that sends none. Raises
    OSError: the connection has ended.
    """
    for wanted in (1, _PEEKED):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        await anyio.wait_readable(connection)
        first = connection.recv(wanted, socket.MSG_PEEK)
        if len(first) < wanted:
            raise ConnectionAbortedError("the client has ended the connection")
        if first[0] != _HANDSHAKE:
            return False
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return first[1] == _MAJOR and first[2] in _MINORS


def peer_of(connection: socket.socket) -> tuple[str, int] | None:
    """Return the address and port of a connection's client; None if it is gone or has none."""
    try:
        peer = connection.getpeername()
    except OSError:
        return None
    return (peer[0], peer[1]) if isinstance(peer, tuple) and peer else None


def log_refused_client(
    peer: str, cause: str, code: ErrorCode = ErrorCode.SSLHandshakeFailed
) -> None:
    """Log mongos's line for a client whose connection is closed before its first command."""
    log.info(
        "Error receiving request from client. Ending connection from remote",
        id=22988,
        error={"code": code.value, "codeName": code.name, "errmsg": cause},
        remote=peer,
    )


NO_TLS: Final = "SSL handshake received but server is started without SSL support"
_HTTP: Final = b"GET "
_RESPONSE_TO: Final = slice(8, 12)
_NO_RESPONSE: Final = frozenset({0, -1})
"""The values of responseTo in the header of a client's first message."""

_HINT: Final = (
    b"It looks like you are trying to access MongoDB over HTTP on the native driver port.\r\n"
)
_HTTP_REPLY: Final = (
    b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_HINT), _HINT)
)


class ForeignProtocolError(ProtocolError):
    """A client that does not speak MongoDB's protocol.

    ``code`` is the error's code in the log, ``reply`` the bytes to send to the client.
    """

    def __init__(self, code: ErrorCode, message: str, reply: bytes = b"") -> None:
        super().__init__(message)
        self.code = code
        self.reply = reply


def check_first_header(header: memoryview) -> None:
    """Check the header of a client's first message.

    Raises ForeignProtocolError: it is an HTTP request, or claims to answer another message, as the
    first bytes of a TLS handshake do.
    """
    if bytes(header[: len(_HTTP)]) == _HTTP:
        raise ForeignProtocolError(
            ErrorCode.ProtocolError,
            "Client sent an HTTP request over a native MongoDB connection",
            _HTTP_REPLY,
        )
    if int.from_bytes(header[_RESPONSE_TO], "little", signed=True) not in _NO_RESPONSE:
        raise ForeignProtocolError(ErrorCode.SSLHandshakeFailed, NO_TLS)
