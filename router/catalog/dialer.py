"""Connections to one replica set of the cluster: to the selected member, or to a given one."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog

from shard_client.backoff import Backoff
from shard_client.error_codes import ErrorCode
from shard_client.errors import (
    CommandError,
    NetworkError,
    WrongServerError,
    from_network,
    is_resumable,
)
from shard_client.remote_cursor.open_cursor import CursorReaper, OpenCursor
from shard_client.replica_set.replica_set import PRIMARY, ReadPreference, ReplicaSet, why_no_member
from shard_client.wire.connection import Address, Connection, format_address
from shard_client.wire.connection_pool import ConnectionPool

log = structlog.get_logger()


class Directory(Protocol):
    """The interface that maps targets to replica sets."""

    async def locate(self, target: str, host: str | None, *, fresh: bool) -> ReplicaSet:
        """Return the replica set that serves ``target`` now.

        ``host`` is the host string that the caller has; with ``fresh`` the shard list is read
        again. Raises CommandError.
        """
        ...

    def said_hello(self, target: str, connection: Connection) -> None:
        """Record the contents of a connection's hello; raises WrongServerError."""
        ...


class MemberDialer:
    """Takes connections from ``pool`` to the members of the replica set that serves ``target``.

    ``connect`` locates the target each time, so that it finds a shard that has moved to other hosts
    (docs/design.md#a-remote-cursor).
    """

    def __init__(
        self,
        directory: Directory,
        target: str,
        host: str | None,
        *,
        preference: ReadPreference,
        attempt_timeout: float,
        pool: ConnectionPool,
        cursor_reaper: CursorReaper,
    ) -> None:
        self._directory = directory
        self._target = target
        self._host = host
        self._preference = preference
        self._attempt_timeout = attempt_timeout
        self._pool = pool
        self._cursor_reaper = cursor_reaper
        self._replica_set: ReplicaSet | None = None

    async def connect(self, timeout: float) -> Connection:
        """Return a connection to the member to read from; retry for up to ``timeout`` seconds.

        The member has just answered a hello. The first attempt takes half of the time at most,
        since the newest shard list may have other members. Raises CommandError, the last failure.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        backoff = Backoff(0.01, 1.0)
        failed = False
        while True:
            left = max(0.001, deadline - loop.time())
            try:
                return await self._attempt(left if failed else left / 2, fresh=failed)
            except CommandError as error:
                report = log.debug if failed else log.warning
                report("cannot connect", target=self._target, error=why_no_member(error))
                failed = True
                pause = backoff.next_pause()
                if not is_resumable(error) or loop.time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        """Return a connection to this member, regardless of its role.

        Raises CommandError, NetworkError.
        """
        return self._identified(await self._pool.take(address, timeout))

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool; cut it if it is closed or has a request in flight."""
        self._pool.give_back(connection)

    def borrow(
        self, address: Address, timeout: float, *, greet: bool = False
    ) -> AbstractAsyncContextManager[Connection]:
        """Borrow a connection to this member for a block, as with the pool's ``borrow``."""
        return self._pool.borrow(address, timeout, greet=greet)

    def suspect(self, address: Address) -> None:
        """Require a new lookup of the member's role before it is selected again."""
        if self._replica_set is not None:
            self._replica_set.invalidate(address)

    def kill_later(self, cursor: OpenCursor) -> None:
        """Kill a cursor soon, or once its member answers again."""
        self._cursor_reaper.add(cursor)

    async def _attempt(self, timeout: float, *, fresh: bool) -> Connection:
        replica_set = await self._directory.locate(self._target, self._host, fresh=fresh)
        self._replica_set = replica_set
        address = await replica_set.select(self._preference, timeout)
        try:
            left = min(timeout, self._attempt_timeout)
            connection = await self._pool.take(address, left, greet=True)
        except NetworkError as error:
            replica_set.invalidate(address)
            raise from_network(error, format_address(address)) from error
        hello = self._identified(connection).hello
        replica_set.observe(address, hello)
        is_primary = hello.get("isWritablePrimary", hello.get("ismaster"))
        if hello.get("setName") != replica_set.name:
            problem = f"is not a member of {replica_set.name}"
        elif self._preference == PRIMARY and not is_primary:
            problem = "is not primary"
        else:
            return connection
        self._pool.give_back(connection)
        replica_set.invalidate(address)
        raise CommandError(ErrorCode.NotWritablePrimary, f"{format_address(address)} {problem}")

    def _identified(self, connection: Connection) -> Connection:
        """Return a connection whose hello fits the target; release it and raise otherwise."""
        try:
            self._directory.said_hello(self._target, connection)
        except WrongServerError:
            self._pool.give_back(connection)
            raise
        return connection
