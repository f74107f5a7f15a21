"""The mongos behind ``--upstream``: one connection to it for each client, message for message."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import structlog

from shard_client.connection import Address, Connection, parse_address
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError

log = structlog.get_logger()

_SCHEME = "mongodb://"


def parse_upstream(uri: str) -> tuple[Address, ...]:
    """Return the hosts of ``mongodb://host:port[,host:port][/]``.

    Raises:
        ValueError: it is no such string, or carries credentials or options.
    """
    if not uri.startswith(_SCHEME):
        raise ValueError(f"not of the form mongodb://host:port: {uri!r}")
    hosts, _slash, rest = uri.removeprefix(_SCHEME).partition("/")
    if rest or "@" in hosts:
        raise ValueError(f"credentials, databases and options do not belong here: {uri!r}")
    return tuple(parse_address(host) for host in hosts.split(","))


class UpstreamMongos:
    """Where commands go that the router does not answer (docs/design.md, section 11).

    Args:
        addresses: the mongoses; links are spread over them and go on to the next if one is gone.
        connect_timeout: seconds for one attempt to connect.
    """

    def __init__(self, addresses: Sequence[Address], *, connect_timeout: float = 5.0) -> None:
        if not addresses:
            raise ValueError("an upstream has at least one address")
        self._addresses = tuple(addresses)
        self._timeout = connect_timeout
        self._next = 0

    def link(self) -> "UpstreamLink":
        """Return a client's own way to the upstream; it connects when first used."""
        return UpstreamLink(self)

    async def connect(self) -> Connection:
        """Open a connection to the next mongos that answers.

        Raises:
            CommandError: HostUnreachable, none of them does.
        """
        failures = []
        for _ in self._addresses:
            address = self._addresses[self._next % len(self._addresses)]
            try:
                return await Connection.open(
                    address, timeout=self._timeout, app_name="mergerouter upstream"
                )
            except (NetworkError, CommandError) as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
                self._next += 1
        log.warning("Upstream mongos is unreachable", component="NETWORK", failures=failures)
        raise CommandError(
            ErrorCode.HostUnreachable, "the upstream mongos is unreachable: " + "; ".join(failures)
        )


class Reachable(Protocol):
    """Another server that commands go on to: the upstream, or a worker of the same router."""

    async def connect(self) -> Connection:
        """Open a connection; raises CommandError, NetworkError."""
        ...


class UpstreamLink:
    """One client's connection to another server, opened when first needed, a request at a time."""

    def __init__(self, upstream: Reachable) -> None:
        self._upstream = upstream
        self._connection: Connection | None = None
        self._in_use = asyncio.Lock()

    async def relay(self, frame: bytes) -> AsyncGenerator[bytes, None]:
        """Send the client's whole uncompressed message on; yield the replies, whole as well.

        Raises:
            CommandError: HostUnreachable; nothing was sent.
            NetworkError: the connection broke; nobody knows what became of the command.
        """
        async with self._in_use:
            connection = await self._open()
            async with aclosing(connection.exchange(frame)) as replies:
                async for reply in replies:
                    yield reply

    async def command(self, database: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command of our own making; raises CommandError, NetworkError."""
        async with self._in_use:
            connection = await self._open()
            sent = {name: value for name, value in command.items() if name != "$db"}
            return await connection.command(database, sent, timeout=None)

    def abort(self) -> None:
        """Cut the connection at once, so that the upstream ends what still runs there."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _open(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._upstream.connect()
        return self._connection
