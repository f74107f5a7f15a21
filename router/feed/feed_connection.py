"""The connection of one client of the feed, as lines, and the login in them."""

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio

from router.access.authorization import require_stream
from router.access.login import Login
from router.feed.watch import Watch
from router.privileges import User
from shard_client.errors import CommandError, ErrorCode, NetworkError
from shard_client.wire.authentication import EXTERNAL, X509

_CLOSE_TIMEOUT = 2.0


class FeedConnection:
    """One client's connection: bounded lines from the client, lines of JSON to it.

    ``address`` is the client's, None if it is gone; ``peer`` has its port too. The limit of
    ``reader`` can be smaller than that of a line.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.transport = writer.transport
        peer = writer.get_extra_info("peername")
        self.address: str | None = peer[0] if peer else None
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self._reader = reader
        self._writer = writer

    async def read(self, most: int) -> bytes:
        """Return the next line without its end; at the end of the stream the rest, possibly empty.

        Raises ValueError if the line has more than ``most`` bytes.
        """
        parts: list[bytes] = []
        size = 0
        ended = False
        while not ended:
            try:
                part = await self._reader.readuntil(b"\n")
                ended = True
            except asyncio.IncompleteReadError as error:
                part, ended = error.partial, True
            except asyncio.LimitOverrunError as error:
                part = await self._reader.readexactly(error.consumed)
            parts.append(part)
            size += len(part)
            if size > most:
                raise ValueError(f"a line is longer than {most} bytes")
        return b"".join(parts).strip()

    async def write(self, lines: bytes) -> None:
        """Write whole lines, and wait until more can be sent; raises ConnectionError."""
        self._writer.write(lines)
        await self._writer.drain()

    async def write_document(self, document: Mapping[str, Any]) -> None:
        """Write a document of plain values as one line of JSON; raises ConnectionError."""
        await self.write(json.dumps(document, default=str).encode() + b"\n")

    async def write_error(self, error: CommandError) -> None:
        """Write an error, the last line of a feed; raises ConnectionError."""
        reply = error.to_reply()
        del reply["ok"]
        await self.write_document({"error": reply})

    def check_connection(self) -> None:
        """Check that the client is not gone, as a write would; raises ConnectionError."""
        if self._writer.is_closing():  # its socket may be closed, and has no options then
            raise ConnectionResetError("the client is gone")
        connection = self._writer.get_extra_info("socket")
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if connection else 0
        if error:
            raise ConnectionResetError(error, "the client is gone")

    async def close(self) -> None:
        """Close the connection, also if the task is being cancelled, in bounded time."""
        self._writer.close()
        with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True) as closing, suppress(OSError):
            await self._writer.wait_closed()
        if closing.cancelled_caught:
            self.transport.abort()


_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-1")
_MOST_STEPS = 4
_FORM = '{"login": {"mechanism": "SCRAM-SHA-256", "payload": "n,,n=USER,r=NONCE"}}'


async def log_client_in(login: Login, lines: FeedConnection, most: int) -> User:
    """Let a client log in, by a SCRAM conversation or by its certificate; return its user.

    A conversation is relayed to the config server, so that the router sees no password; a
    certificate is checked by the router (docs/feed.md#login). Lines have ``most`` bytes at most.

    Raises ValueError: a line is no login; CommandError: 13, the client does not log in, or the
    login is refused.
    """
    first = _fields(await lines.read(most))
    mechanism = _text(first, "mechanism")
    try:
        if mechanism == X509:
            await _present(login, lines, first)
        elif mechanism in _SCRAM:
            await _converse(login, lines, first, most)
        else:
            raise ValueError(f"mechanism must be one of {', '.join((*_SCRAM, X509))}")
    except NetworkError as error:
        raise CommandError(
            ErrorCode.HostUnreachable, f"the config server does not answer: {error}"
        ) from error
    if login.user is None:  # the conversation did not end, or the user was dropped meanwhile
        raise CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.")
    return login.user


async def _present(login: Login, lines: FeedConnection, first: Mapping[str, Any]) -> None:
    """Log in by the client's certificate; raises ValueError, CommandError, NetworkError."""
    step: dict[str, Any] = {"authenticate": 1, "mechanism": X509}
    if "user" in first:
        step["user"] = _text(first, "user")
    await login.present(_text(first, "authSource", EXTERNAL), step)
    await lines.write_document({"login": {"payload": "", "done": True}})


async def _converse(
    login: Login, lines: FeedConnection, first: Mapping[str, Any], most: int
) -> None:
    """Relay a SCRAM conversation; raises ValueError, CommandError, NetworkError."""
    database = _text(first, "authSource", "admin")
    step: dict[str, Any] = {
        "saslStart": 1,
        "mechanism": first["mechanism"],
        "payload": _text(first, "payload").encode(),
        "options": {"skipEmptyExchange": True},
    }
    reply: Mapping[str, Any] = {}
    for number in range(_MOST_STEPS):
        if number:
            payload = _text(_fields(await lines.read(most)), "payload").encode()
            conversation = reply.get("conversationId")
            step = {"saslContinue": 1, "conversationId": conversation, "payload": payload}
        reply = await login.converse(None, database, step)
        done = bool(reply.get("done"))
        answer = bytes(reply.get("payload") or b"").decode(errors="replace")
        await lines.write_document({"login": {"payload": answer, "done": done}})
        if done:
            return


def check_rights(user: User, watch: Watch) -> None:
    """Check that the user may read the stream; raises CommandError (13)."""
    database, collection = watch.request.database, watch.request.collection
    command: dict[str, Any] = {"aggregate": collection or 1, "pipeline": [{"$changeStream": {}}]}
    require_stream(user, database, collection, command)


def _fields(line: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    fields = document.get("login") if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        raise CommandError(
            ErrorCode.Unauthorized, f"the feed requires a login: send a line such as {_FORM} first"
        )
    return fields


def _text(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} of a login must be a string")
    return value
