"""Access to a server: log in with SCRAM-SHA-256 or a certificate, as a member or as a user.

Sources: RFC 5802, RFC 7677; MongoDB's authentication specification for drivers;
docs/protocol.md#authentication.
"""

import asyncio
import re
import ssl
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from bson.binary import Binary
from scramp import ScramClient, ScramException

from shard_client.errors import CommandError, ErrorCode, ProtocolError
from shard_client.wire.tls import TlsContexts

MECHANISM = "SCRAM-SHA-256"
"""The mechanism of passwords: members accept no older one from each other."""

X509, EXTERNAL = "MONGODB-X509", "$external"
"""The mechanism of certificates, and the database of their users."""

MEMBER, MEMBER_SOURCE = "__system", "local"
"""The user as which the members of a cluster log in to each other, and its database."""

_KEY_LENGTHS = range(6, 1025)
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
_LARGEST_FILE = 64 * 1024
_ITERATIONS = re.compile(r",i=([0-9]{1,9})(?:,|$)")
_LEAST_ITERATIONS, _MOST_ITERATIONS = 4096, 10_000_000


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user, the database that it belongs to, and its password.

    ``passwords`` has more than one entry only for a key file with several keys: each is tried in
    turn. It is empty for a login with the certificate of the connection. Passwords do not appear in
    the object's representation.
    """

    user: str
    source: str
    passwords: tuple[str, ...] = field(repr=False)

    @property
    def password(self) -> str | None:
        """The first password; None for a login with a certificate."""
        return self.passwords[0] if self.passwords else None

    @property
    def mechanism(self) -> str:
        """The mechanism of the login."""
        return MECHANISM if self.passwords else X509

    def __str__(self) -> str:
        """Return the user as ``name@database``."""
        return f"{self.user}@{self.source}"


BY_CERTIFICATE = Credentials("the subject of its certificate", EXTERNAL, ())
"""The login with the certificate of the connection, whose subject the server knows."""


@dataclass(frozen=True, slots=True)
class Access:
    """The login and the TLS contexts of connections to servers of the cluster.

    ``credentials`` are None for a cluster without authentication. ``tls`` is None for connections
    without TLS.
    """

    credentials: Credentials | None = None
    tls: TlsContexts | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context of a new connection, None without TLS."""
        return None if self.tls is None else self.tls.outgoing


OPEN = Access()
"""Access to a cluster without authentication and TLS."""

RunCommand = Callable[..., Awaitable[dict[str, Any]]]
"""``Connection.command``, which runs a command on a database."""


def read_secret_file(path: Path) -> str:
    """Return a file's text, refusing a file that others can read.

    Raises:
        ValueError: group or others have permissions on the file, or it is too large or no text.
        OSError: the file cannot be read.
    """
    status = path.stat()
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"permissions on {path} are too open: run chmod 600 {path}")
    if status.st_size > _LARGEST_FILE:
        raise ValueError(f"{path} is too large for a secret: {status.st_size} bytes")
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise ValueError(f"{path} does not hold text") from None


def read_key_file(path: Path) -> Credentials:
    """Return the login of a cluster member from a key file, read as mongod reads it.

    The file holds one key, or a YAML list of keys. White space in a key is ignored.

    Raises:
        ValueError: the file's permissions or its content are not those of a key file; the message
            does not show the content.
        OSError: the file cannot be read.
    """
    content = read_secret_file(path)
    keys = [content]
    if content.lstrip().startswith(("-", "[")):
        try:
            listed = yaml.safe_load(content)
        except yaml.YAMLError:
            raise ValueError(f"{path} is not a valid list of keys") from None
        if not isinstance(listed, list) or not all(isinstance(key, str) for key in listed):
            raise ValueError(f"{path} is not a list of keys")
        keys = listed
    stripped = tuple("".join(key.split()) for key in keys)
    for key in stripped:
        if not set(key) <= _BASE64:
            raise ValueError(f"invalid char in key file {path}: keys are base64")
        if len(key) not in _KEY_LENGTHS:
            raise ValueError(
                f"security key in {path} has length {len(key)}, must be between 6 and 1024 chars"
            )
    if not stripped:
        raise ValueError(f"{path} holds no key")
    return Credentials(MEMBER, MEMBER_SOURCE, stripped)


async def log_in(run: RunCommand, credentials: Credentials, *, timeout: float) -> None:
    """Log in over a connection that has exchanged its hello.

    The server proves in turn that it knows the password. Hashing the password takes milliseconds
    of processor time and runs in a thread.

    Args:
        run: runs a command over the connection.
        credentials: the user.
        timeout: seconds for each of the server's replies.

    Raises:
        CommandError: the server refuses the login (18) or cannot check it; or it does not prove
            that it knows the password.
        NetworkError: the connection broke.
        ProtocolError: a reply is malformed.
    """
    if credentials.mechanism == X509:
        await run(EXTERNAL, {"authenticate": 1, "mechanism": X509}, timeout=timeout)
        return
    last = len(credentials.passwords) - 1
    for number, password in enumerate(credentials.passwords):
        try:
            await _converse(run, credentials, password, timeout)
        except CommandError as error:
            if number == last or error.code != ErrorCode.AuthenticationFailed:
                raise
        else:
            return


async def _converse(
    run: RunCommand, credentials: Credentials, password: str, timeout: float
) -> None:
    try:
        client = ScramClient([MECHANISM], credentials.user, password)
        reply = await run(
            credentials.source,
            {
                "saslStart": 1,
                "mechanism": MECHANISM,
                "payload": Binary(client.get_client_first().encode()),
                "options": {"skipEmptyExchange": True},
            },
            timeout=timeout,
        )
        challenge = _payload(reply)
        _check_iterations(challenge)
        client.set_server_first(challenge)
        loop = asyncio.get_running_loop()
        proof = await loop.run_in_executor(None, client.get_client_final)
        following = {"saslContinue": 1, "conversationId": reply.get("conversationId")}
        reply = await run(
            credentials.source, {**following, "payload": Binary(proof.encode())}, timeout=timeout
        )
        client.set_server_final(_payload(reply))
        if not reply.get("done"):
            reply = await run(
                credentials.source, {**following, "payload": Binary(b"")}, timeout=timeout
            )
    except ScramException as error:
        raise CommandError(
            ErrorCode.AuthenticationFailed, f"the server's part of the login is not valid: {error}"
        ) from None
    if not reply.get("done"):
        raise ProtocolError("the server does not end the login")


def _check_iterations(challenge: str) -> None:
    """Refuse a number of iterations that makes the password easy to guess, or takes too long."""
    match = _ITERATIONS.search(challenge)
    if match is None or not _LEAST_ITERATIONS <= int(match[1]) <= _MOST_ITERATIONS:
        raise CommandError(
            ErrorCode.AuthenticationFailed,
            "the server's part of the login is not valid: it must have from "
            f"{_LEAST_ITERATIONS} to {_MOST_ITERATIONS} iterations",
        )


def _payload(reply: Mapping[str, Any]) -> str:
    payload = reply.get("payload")
    if not isinstance(payload, bytes):
        raise ProtocolError("a reply to a login has no payload")
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise ProtocolError("a reply to a login is not text") from None
