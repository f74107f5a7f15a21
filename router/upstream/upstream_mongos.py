"""The upstream mongos (``--upstream``): it gets the commands that the router does not answer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog
from bson.objectid import ObjectId

from shard_client.errors import CommandError, ErrorCode, NetworkError, WrongServerError
from shard_client.wire.authentication import OPEN, Access, Credentials
from shard_client.wire.connection import Address, Connection, format_address, parse_address
from shard_client.wire.connection_pool import ConnectionPool, PoolLimits

log = structlog.get_logger(component="NETWORK")

_TIMEOUT = 5.0
"""Seconds for one attempt to connect."""
_LENT = PoolLimits(idle_time=30.0)
"""The limits of the connections that are lent to lookups."""
_SCHEME = "mongodb://"
_MONGOS = "isdbgrid"
"""The ``msg`` in a mongos's hello."""


def parse_upstream(uri: str) -> tuple[Address, ...]:
    """Return the hosts of ``mongodb://host:port[,host:port][/]``.

    Raises ValueError: the string is not of that form, or has credentials, a database or options.
    """
    hosts, _slash, rest = uri.removeprefix(_SCHEME).partition("/")
    if not uri.startswith(_SCHEME) and not {"@", "?"} & {*uri}:
        raise ValueError(f"must be mongodb://host:port[,host:port], not {uri!r}")
    if rest or "@" in uri:  # the message does not repeat what may hold a password
        raise ValueError(
            "credentials, databases and options do not belong here: clients log in with their own, "
            "and security.user names the router's"
        )
    if not uri.startswith(_SCHEME):
        raise ValueError("must be mongodb://host:port[,host:port]")
    return tuple(parse_address(host) for host in hosts.split(","))


class UpstreamMongos:
    """Receives the commands that the router does not answer (docs/clients.md).

    All links use the same mongos until it cannot be reached; then all switch to the next one that
    can. A driver's pool has several connections to the router, and a cursor or transaction opened
    on one of them must be available on the others.

    ``chosen`` is the index of the mongos in use; ``generation`` counts the switches.

    Args:
        addresses: the mongoses, one or more, in order of preference.
        access: how to connect: by TLS or not, and as which user of the router's own on connections
            that serve no client's commands.
        own_id: the ``topologyVersion.processId`` of this router's hello, by which it recognises
            itself.
    """

    def __init__(
        self, addresses: Sequence[Address], *, access: Access = OPEN, own_id: ObjectId | None = None
    ) -> None:
        self.chosen = 0
        self.generation = 0
        self.addresses = tuple(addresses)
        self.user = access.credentials
        """The router's own login, None if it has none."""
        self._pool = ConnectionPool(
            _LENT, connect=lambda address, _timeout: self.connect_to(address, self.user)
        )
        self._own_id = own_id
        self.moved: Callable[[int, int], None] = lambda _chosen, _generation: None
        """Called when this process has switched, with its choice, so that the others do."""
        self._access = access

    async def serves(self, address: Address) -> bool:
        """Return whether ``address`` is that of the mongos in use."""
        return address == self.addresses[self.chosen]

    def follow(self, chosen: int, generation: int) -> None:
        """Adopt the common choice of mongos, unless this process has switched since."""
        if generation >= self.generation:
            self.chosen, self.generation = chosen % len(self.addresses), generation

    async def connect(self) -> Connection:
        """Open a connection to the mongos in use, or to the next one that answers; no login.

        Raises CommandError: HostUnreachable, none of them answers.
        """
        return await self._first(self.connect_to)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """Lend a connection, logged in as the router's own user if it has one, for a block.

        Raises CommandError: HostUnreachable, no mongos answers or accepts the login.
        """
        connection = await self._first(lambda address: self._pool.take(address, _TIMEOUT))
        try:
            yield connection
        finally:
            self._pool.give_back(connection)

    def close(self) -> None:
        """Close the connections that are kept to lend them again."""
        self._pool.close()

    async def connect_to(
        self, address: Address, credentials: Credentials | None = None
    ) -> Connection:
        """Open a connection to one address; no command and no login reaches what is no mongos.

        Raises:
            WrongServerError: the server there is no mongos, or this router itself.
            CommandError: the server refuses the login.
            NetworkError: the server does not answer.
        """
        connection = await Connection.open(
            address, timeout=_TIMEOUT, tls=self._access.context, app_name="mergerouter upstream"
        )
        try:
            self._identify(connection)
            if credentials is not None:
                await connection.log_in(credentials, _TIMEOUT)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _identify(self, connection: Connection) -> None:
        """Raise WrongServerError unless the hello is that of a mongos."""
        hello = connection.hello
        version = hello.get("topologyVersion")
        process = version.get("processId") if isinstance(version, Mapping) else None
        if hello.get("msg") != _MONGOS:
            problem = "answers, but is no mongos"
        elif process is not None and process == self._own_id:
            problem = "is this router itself"
        else:
            return
        raise WrongServerError(
            ErrorCode.IllegalOperation,
            f"{format_address(connection.address)} {problem}: name a mongos of the cluster in "
            "upstream (--upstream)",
        )

    async def _first(self, connect: Callable[[Address], Awaitable[Connection]]) -> Connection:
        """Return what ``connect`` returns for the mongos in use, or the next that answers."""
        first, generation = self.chosen, self.generation
        failures = []
        for step in range(len(self.addresses)):
            index = (first + step) % len(self.addresses)
            address = self.addresses[index]
            try:
                connection = await connect(address)
            except (NetworkError, CommandError) as error:
                failures.append(f"{format_address(address)}: {error}")
                continue
            if index != self.chosen and generation == self.generation:
                log.warning(
                    "Upstream mongos has failed; using the next",
                    failures=failures,
                    next=format_address(address),
                )
                self.chosen, self.generation = index, generation + 1
                self.moved(index, self.generation)
            return connection
        log.warning("Upstream mongos is unreachable", failures=failures)
        raise CommandError(
            ErrorCode.HostUnreachable, "the upstream mongos is unreachable: " + "; ".join(failures)
        )
