"""The primary that knows the users, and is the upstream in front of a replica set."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from router.catalog.cluster import Cluster
from shard_client.errors import (
    NOT_PRIMARY_CODES,
    CommandError,
    ErrorCode,
    NetworkError,
    is_resumable,
)
from shard_client.replica_set.replica_set import PRIMARY
from shard_client.wire.bson_slices import find
from shard_client.wire.connection import Address, Connection
from shard_client.wire.frames import with_field

_TIMEOUT = 5.0
"""Seconds for finding a primary, and for one attempt to connect."""


class CatalogPrimary:
    """The primary of the replica set that knows the users: of the config server, or of the set.

    Logins are relayed to it. It is the upstream of a router in front of a replica set.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._target = cluster.catalog

    async def serves(self, address: Address) -> bool:
        """Return whether ``address`` is the primary's; look for the primary if none is known.

        Raises CommandError (HostUnreachable, no primary answers within five seconds).
        """
        with _search_for_primary(self._target):
            replica_set = self._cluster.replica_set(self._target)
            return await replica_set.select(PRIMARY, _TIMEOUT) == address

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Connection]:
        """Lend a connection, logged in as the router's own user if it has one, for a block.

        Raises CommandError (HostUnreachable, no primary answers within five seconds), NetworkError.
        """
        async with AsyncExitStack() as lent:
            with _search_for_primary(self._target):
                primary = self._cluster.lend(self._target, timeout=_TIMEOUT, greet=False)
                connection = await lent.enter_async_context(primary)
            yield connection

    def note_reply(self, address: Address | None, code: int | None) -> None:
        """Look for another primary if the error of a reply from ``address`` says so.

        ``code`` is None for a reply without an error. A late reply of an earlier primary does not
        concern the present one.
        """
        if code in NOT_PRIMARY_CODES and address is not None:
            self._cluster.distrust(self._target, address)

    def as_mongos(self, command: bytes, reply: bytes) -> bytes:
        """Return the reply to a client's command with a recovery token in a transaction.

        Drivers pass it on as they commit or abort, perhaps through another router. A replica set
        ignores it: its primary knows the transaction. ``reply`` is a whole frame.
        """
        if find(command, b"autocommit") is None:
            return reply
        return with_field(reply, "recoveryToken", {"recoveryShardId": self._target})

    async def connect(self) -> Connection:
        """Open a connection that is not logged in.

        Raises CommandError: HostUnreachable, no primary answers within five seconds.
        """
        app_name, tls = "mergerouter upstream", self._cluster.access.context
        with _search_for_primary(self._target):
            async with self._cluster.lend(self._target, timeout=_TIMEOUT) as primary:
                address = primary.address
                return await Connection.open(address, timeout=_TIMEOUT, tls=tls, app_name=app_name)


@contextmanager
def _search_for_primary(target: str) -> Iterator[None]:
    """Raise HostUnreachable if the block finds no primary, which may be over soon."""
    try:
        yield
    except (CommandError, NetworkError) as error:
        if isinstance(error, CommandError) and not is_resumable(error):
            raise
        why = f"no primary of {target} answers: {error}"
        raise CommandError(ErrorCode.HostUnreachable, why) from error
