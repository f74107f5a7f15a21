"""Locks on databases and namespaces, similar to MongoDB's intent and exclusive locks.

- Reads, writes and ``create`` hold shared locks on the database and on the namespace. In a
  transaction they hold them until it ends.
- Chunk migrations, ``split``, ``shardCollection`` and changes of collections and indexes hold a
  shared lock on the database and an exclusive lock on the namespace.
- ``movePrimary``, ``dropDatabase``, and ``addShard`` of a shard that already has databases, hold
  exclusive locks on the databases.

An operation acquires the locks on databases first, then those on namespaces, each in the order of
names. Then it reads the cluster's catalog, which does not change there while it holds the locks.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from embedded.errors import TRANSIENT_TRANSACTION, CommandError, ErrorCode


def names_to_share(namespace: str) -> tuple[str, str]:
    """Return the names on which a read or write takes shared locks, in order."""
    return namespace.partition(".")[0], namespace


@dataclass
class _Lock:
    """The holders and waiters of one name; ``changed`` is replaced whenever they change."""

    shared: int = 0
    exclusive: bool = False
    waiting_shared: int = 0
    waiting_exclusive: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def unused(self) -> bool:
        return not (self.shared or self.exclusive or self.waiting_shared or self.waiting_exclusive)


class NamespaceLocks:
    """The locks of one cluster. An exclusive waiter blocks new shared holders.

    Args:
        timeout: the longest wait for a lock, in seconds.
    """

    def __init__(self, timeout: float = 20.0) -> None:
        self._timeout = timeout
        self._locks: dict[str, _Lock] = {}

    @property
    def held(self) -> bool:
        """Whether any lock has a holder or a waiter."""
        return bool(self._locks)

    @asynccontextmanager
    async def shared(self, namespace: str) -> AsyncIterator[None]:
        """Hold shared locks on a namespace and its database during the block.

        Raises:
            CommandError: 24 LockTimeout.
        """
        async with self._holding(shared=names_to_share(namespace)):
            yield

    @asynccontextmanager
    async def exclusive(self, *namespaces: str) -> AsyncIterator[None]:
        """Hold exclusive locks on namespaces, and shared ones on their databases.

        Raises:
            CommandError: 24 LockTimeout.
        """
        databases = {namespace.partition(".")[0] for namespace in namespaces}
        async with self._holding(shared=databases, exclusive=namespaces):
            yield

    @asynccontextmanager
    async def exclusive_databases(self, *databases: str) -> AsyncIterator[None]:
        """Hold exclusive locks on databases, and thereby on all of their namespaces.

        Raises:
            CommandError: 24 LockTimeout.
        """
        async with self._holding(exclusive=databases):
            yield

    @asynccontextmanager
    async def _holding(
        self, shared: Iterable[str] = (), exclusive: Iterable[str] = ()
    ) -> AsyncIterator[None]:
        """Hold some shared locks during the block, and then some exclusive ones."""
        async with AsyncExitStack() as held:
            for name in sorted(set(shared)):
                await self.acquire_shared(name)
                held.callback(self.release_shared, name)
            for name in sorted(set(exclusive)):
                await self._acquire_exclusive(name)
                held.callback(self._release_exclusive, name)
            yield

    async def acquire_shared(self, name: str) -> None:
        """Acquire a shared lock without a block, for a transaction.

        Raises:
            CommandError: 24 LockTimeout.
        """
        lock = self._locks.setdefault(name, _Lock())
        lock.waiting_shared += 1
        try:
            await self._wait(name, lock, lambda: not lock.exclusive and not lock.waiting_exclusive)
            lock.shared += 1
        finally:
            lock.waiting_shared -= 1
            self._changed(name, lock)

    def release_shared(self, name: str) -> None:
        """Release a lock that ``acquire_shared`` acquired."""
        lock = self._locks[name]
        lock.shared -= 1
        self._changed(name, lock)

    async def _acquire_exclusive(self, name: str) -> None:
        lock = self._locks.setdefault(name, _Lock())
        lock.waiting_exclusive += 1
        try:
            await self._wait(name, lock, lambda: not lock.exclusive and not lock.shared)
            lock.exclusive = True
        finally:
            lock.waiting_exclusive -= 1
            self._changed(name, lock)

    def _release_exclusive(self, name: str) -> None:
        lock = self._locks[name]
        lock.exclusive = False
        self._changed(name, lock)

    async def _wait(self, name: str, lock: _Lock, ready: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while not ready():
                    await lock.changed.wait()
        except TimeoutError:
            raise CommandError(
                ErrorCode.LockTimeout,
                f"Unable to acquire lock on {name} within {self._timeout:g} s",
                labels=[TRANSIENT_TRANSACTION],
            ) from None

    def _changed(self, name: str, lock: _Lock) -> None:
        """Wake all waiters, so that they check the lock again; forget an unused lock."""
        lock.changed.set()
        lock.changed = asyncio.Event()
        if lock.unused:
            del self._locks[name]
