"""A connection pool with a bounded number of connections per member."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from shard_client.errors import RESUMABLE_LABEL, CommandError, ErrorCode, NetworkError
from shard_client.wire.authentication import OPEN, Access
from shard_client.wire.connection import Address, Connection, format_address


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits of a pool's connections to one member; times in seconds.

    ``most`` limits connections in use and idle ones together. Up to ``most_idle`` idle connections
    are kept for ``idle_time`` each, further ones for ``surplus_time``, and the last ``kept`` for as
    long as the member keeps them. ``most_brief`` limits the concurrent callers of ``borrow``.
    """

    most: int = 1000
    most_idle: int = 8
    idle_time: float = 300.0
    surplus_time: float = 5.0
    most_brief: int = 32
    kept: int = 0


class PoolCounts(NamedTuple):
    """Counts of a pool's connections to one member: in use, idle, and created in total."""

    in_use: int
    available: int
    created: int


@dataclass(slots=True)
class _Member:
    """The connections to one address. ``free`` counts those that may be taken, ``brief`` those that
    may be borrowed."""

    free: asyncio.Semaphore
    brief: asyncio.Semaphore
    created: int = 0
    in_use: set[Connection] = field(default_factory=set)
    idle: deque[tuple[Connection, float]] = field(default_factory=deque)

    def give_up(self, connection: Connection) -> None:
        """Record that a connection is no longer in use; idempotent."""
        if connection in self.in_use:
            self.in_use.remove(connection)
            self.free.release()


class ConnectionPool:
    """All connections of a process to the members of a cluster (docs/connections.md).

    ``take`` returns an idle connection or a new one; ``give_back`` keeps it for the next caller;
    ``borrow`` does both around a short block. ``access`` has the login and the TLS context of new
    connections; ``connect`` opens them instead, within so many seconds, where it is given. Create
    the pool in a running loop.
    """

    def __init__(
        self,
        limits: PoolLimits | None = None,
        *,
        access: Access = OPEN,
        connect: Callable[[Address, float], Awaitable[Connection]] | None = None,
    ) -> None:
        self._limits = limits or PoolLimits()
        self._connect = connect or partial(_connected, access)
        self._loop = asyncio.get_running_loop()
        self._members: dict[Address, _Member] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def counts(self) -> dict[Address, PoolCounts]:
        """The connection counts by member."""
        return {
            address: PoolCounts(len(member.in_use), len(member.idle), member.created)
            for address, member in self._members.items()
        }

    async def take(self, address: Address, timeout: float, *, greet: bool = False) -> Connection:
        """Return a connection to ``address``.

        ``timeout``, in seconds, limits the wait while all connections are in use, and then the time
        to connect, so that no member is blamed for the wait. The most recently used idle connection
        is preferred. With ``greet``, a hello is exchanged during the call, so that the connection's
        ``hello`` has the member's current state. Raises NetworkError, and CommandError: the error
        reply to the hello, or 202 if the maximum number of connections is in use.
        """
        member = self._member(address)
        await _acquire(member.free, timeout, self._limits.most, "connections", address)
        try:
            deadline = self._loop.time() + timeout
            connection = await self._connection(address, member, deadline, greet=greet)
        except BaseException:
            member.free.release()
            raise
        member.in_use.add(connection)
        return connection

    async def _connection(
        self, address: Address, member: _Member, deadline: float, *, greet: bool
    ) -> Connection:
        while (connection := _pop(member)) is not None:
            left = max(0.001, deadline - self._loop.time())
            if not greet or await self._still_answers(connection, left):
                return connection
            self.forget(address)
        made = await self._connect(address, max(0.001, deadline - self._loop.time()))
        member.created += 1
        made.when_closed(lambda: member.give_up(made))
        return made

    def give_back(self, connection: Connection) -> None:
        """Keep ``connection`` for the next caller.

        It is cut instead if it is closed or has a request in flight, or if the pool is closed.
        """
        member = self._member(connection.address)
        if self._closed or connection.closed or connection.busy:
            connection.abort()
        else:
            connection.free_buffer()
            member.idle.append((connection, self._loop.time()))
            self._expire_later()
        member.give_up(connection)

    @asynccontextmanager
    async def borrow(self, address: Address, timeout: float) -> AsyncIterator[Connection]:
        """Use a connection to ``address`` for a block, as from ``take``.

        Before that, up to ``timeout`` seconds are waited while the most brief uses are in progress.
        If the block raises NetworkError, the idle connections to that member are cut too, since
        they may be broken as well.
        """
        brief = self._member(address).brief
        most = self._limits.most_brief
        await _acquire(brief, timeout, most, "brief uses of connections", address)
        try:
            connection = await self.take(address, timeout)
            try:
                yield connection
            except NetworkError:
                self.forget(address)
                raise
            finally:
                self.give_back(connection)
        finally:
            brief.release()

    def forget(self, address: Address) -> None:
        """Cut the idle connections to ``address``."""
        idle = self._member(address).idle
        while idle:
            idle.pop()[0].abort()

    def close(self) -> None:
        """Cut the idle connections; connections in use are cut when they are returned."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for address in self._members:
            self.forget(address)

    def _member(self, address: Address) -> _Member:
        member = self._members.get(address)
        if member is None:
            limits = self._limits
            member = _Member(asyncio.Semaphore(limits.most), asyncio.Semaphore(limits.most_brief))
            self._members[address] = member
        return member

    async def _still_answers(self, connection: Connection, timeout: float) -> bool:
        """Exchange a hello over a formerly idle connection; return False if it had been cut.

        Raises NetworkError if the member does not answer, CommandError for an error reply.
        """
        asked_at = self._loop.time()
        try:
            await connection.greet(timeout)
        except NetworkError:
            if self._loop.time() - asked_at < timeout:
                return False
            self.forget(connection.address)
            raise
        except BaseException:
            connection.abort()
            raise
        return True

    def _expire_later(self) -> None:
        if self._timer is None and not self._closed:
            soon = min(self._limits.surplus_time, self._limits.idle_time)
            self._timer = self._loop.call_later(soon, self._expire)

    def _expire(self) -> None:
        """Cut the connections that have been idle longer than allowed."""
        self._timer = None
        now, limits = self._loop.time(), self._limits
        for member in self._members.values():
            while len(member.idle) > limits.kept:
                surplus = len(member.idle) > limits.most_idle
                kept = limits.surplus_time if surplus else limits.idle_time
                if member.idle[0][1] + kept > now:
                    break
                member.idle.popleft()[0].abort()
        if any(len(member.idle) > limits.kept for member in self._members.values()):
            self._expire_later()


async def _connected(access: Access, address: Address, timeout: float) -> Connection:
    credentials = access.credentials
    return await Connection.open(
        address, timeout=timeout, tls=access.context, credentials=credentials
    )


def _pop(member: _Member) -> Connection | None:
    """Return the most recently used idle connection, so that the others can expire."""
    while member.idle:
        connection, _ = member.idle.pop()
        if not connection.closed:
            return connection
    return None


async def _acquire(
    free: asyncio.Semaphore, timeout: float, most: int, what: str, address: Address
) -> None:
    """Wait ``timeout`` seconds for one of ``most``. Raises mongos's CommandError, with ``what``."""
    try:
        async with asyncio.timeout(timeout):
            await free.acquire()
    except TimeoutError:
        raise CommandError(
            ErrorCode.NetworkInterfaceExceededTimeLimit,
            f"all {most} {what} to {format_address(address)} are taken",
            labels=(RESUMABLE_LABEL,),
        ) from None
