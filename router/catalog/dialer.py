"""Connections to one replica set of the cluster: to the member to read from, or to a given one."""

import asyncio
from typing import Protocol

import structlog

from shard_client.backoff import Backoff
from shard_client.connection import Address, Connection, format_address
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError
from shard_client.read_preference import PRIMARY, ReadPreference
from shard_client.replica_set import ReplicaSet
from shard_client.retry_policy import from_network, is_resumable

log = structlog.get_logger()


class Directory(Protocol):
    """Knows the replica sets behind targets."""

    async def locate(self, target: str, host: str | None, *, fresh: bool) -> ReplicaSet:
        """Return the replica set that serves ``target`` now.

        ``host`` is the host string that the caller believes in; ``fresh`` asks for the list to be
        read again. Raises CommandError.
        """
        ...

    def said_hello(self, target: str, connection: Connection) -> None:
        """Take note of a new connection's hello."""
        ...


class MemberDialer:
    """Connects to the members of the replica set behind ``target`` (docs/design.md, section 6).

    Where the target is, is looked up each time, so that a shard that has moved to other hosts is
    found there.
    """

    def __init__(
        self,
        directory: Directory,
        target: str,
        host: str | None,
        *,
        preference: ReadPreference,
        attempt_timeout: float,
    ) -> None:
        self._directory = directory
        self._target = target
        self._host = host
        self._preference = preference
        self._attempt_timeout = attempt_timeout
        self._replica_set: ReplicaSet | None = None

    async def connect(self, timeout: float) -> Connection:
        """Connect to the member to read from, trying again for up to ``timeout`` seconds.

        Raises CommandError, the last one met.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        backoff = Backoff(0.01, 1.0)
        failed = False
        while True:
            try:
                return await self._attempt(max(0.001, deadline - loop.time()), fresh=failed)
            except CommandError as error:
                say = log.debug if failed else log.warning
                say("cannot connect", target=self._target, error=str(error))
                failed = True
                pause = backoff.next_pause()
                if not is_resumable(error) or loop.time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        """Connect to this member, whatever its role. Raises CommandError, NetworkError."""
        connection = await Connection.open(address, timeout=timeout)
        self._directory.said_hello(self._target, connection)
        return connection

    def suspect(self, address: Address) -> None:
        """Have the member's role looked up again before it is chosen once more."""
        if self._replica_set is not None:
            self._replica_set.invalidate(address)

    async def _attempt(self, timeout: float, *, fresh: bool) -> Connection:
        replica_set = await self._directory.locate(self._target, self._host, fresh=fresh)
        self._replica_set = replica_set
        address = await replica_set.select(self._preference, timeout)
        try:
            connection = await self.connect_to(address, min(timeout, self._attempt_timeout))
        except NetworkError as error:
            replica_set.invalidate(address)
            raise from_network(error, format_address(address)) from error
        hello = connection.hello
        is_primary = hello.get("isWritablePrimary", hello.get("ismaster"))
        if hello.get("setName") != replica_set.name:
            problem = f"is not a member of {replica_set.name}"
        elif self._preference == PRIMARY and not is_primary:
            problem = "is not primary"
        else:
            return connection
        connection.abort()
        replica_set.invalidate(address)
        raise CommandError(ErrorCode.NotWritablePrimary, f"{format_address(address)} {problem}")
