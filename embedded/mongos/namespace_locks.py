"""Locks on namespaces: shared for reads and writes, exclusive for changes of the namespace."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from embedded.errors import CommandError, ErrorCode


@dataclass
class _Lock:
    """The holders and waiters of one namespace; ``changed`` is replaced whenever they change."""

    shared: int = 0
    exclusive: bool = False
    waiting_shared: int = 0
    waiting_exclusive: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def unused(self) -> bool:
        return not (self.shared or self.exclusive or self.waiting_shared or self.waiting_exclusive)


class NamespaceLocks:
    """Shared and exclusive locks by namespace, similar to MongoDB's intent and exclusive locks.

    Reads and writes hold a shared lock, a transaction until it ends. Chunk migrations and DDL hold
    an exclusive lock. An exclusive waiter blocks new shared holders.

    Args:
        timeout: the longest wait for a lock, in seconds.
    """

    def __init__(self, timeout: float = 20.0) -> None:
        self._timeout = timeout
        self._locks: dict[str, _Lock] = {}

    @property
    def held(self) -> bool:
        """Whether any namespace has a holder or a waiter."""
        return bool(self._locks)

    @asynccontextmanager
    async def shared(self, namespace: str) -> AsyncIterator[None]:
        """Hold a shared lock on ``namespace`` during the block.

        Raises:
            CommandError: 24 LockTimeout.
        """
        await self.acquire_shared(namespace)
        try:
            yield
        finally:
            self.release_shared(namespace)

    async def acquire_shared(self, namespace: str) -> None:
        """Acquire a shared lock without a block, for a transaction.

        Raises:
            CommandError: 24 LockTimeout.
        """
        lock = self._locks.setdefault(namespace, _Lock())
        lock.waiting_shared += 1
        try:
            await self._wait(
                namespace, lock, lambda: not lock.exclusive and not lock.waiting_exclusive
            )
            lock.shared += 1
        finally:
            lock.waiting_shared -= 1
            self._changed(namespace, lock)

    def release_shared(self, namespace: str) -> None:
        """Release a lock that ``acquire_shared`` acquired."""
        lock = self._locks[namespace]
        lock.shared -= 1
        self._changed(namespace, lock)

    @asynccontextmanager
    async def exclusive(self, *namespaces: str) -> AsyncIterator[None]:
        """Hold exclusive locks on ``namespaces`` during the block, acquired in name order.

        Raises:
            CommandError: 24 LockTimeout.
        """
        held: dict[str, _Lock] = {}
        try:
            for name in sorted(set(namespaces)):
                held[name] = await self._acquire_exclusive(name)
            yield
        finally:
            for name, lock in held.items():
                lock.exclusive = False
                self._changed(name, lock)

    async def _acquire_exclusive(self, namespace: str) -> _Lock:
        lock = self._locks.setdefault(namespace, _Lock())
        lock.waiting_exclusive += 1
        try:
            await self._wait(namespace, lock, lambda: not lock.exclusive and not lock.shared)
            lock.exclusive = True
        finally:
            lock.waiting_exclusive -= 1
            self._changed(namespace, lock)
        return lock

    async def _wait(self, namespace: str, lock: _Lock, ready: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while not ready():
                    await lock.changed.wait()
        except TimeoutError:
            raise CommandError(
                ErrorCode.LockTimeout,
                f"Unable to acquire lock on {namespace} within {self._timeout:g} s",
                labels=["TransientTransactionError"],
            ) from None

    def _changed(self, namespace: str, lock: _Lock) -> None:
        """Wake all waiters, so that they check the lock again; forget an unused lock."""
        lock.changed.set()
        lock.changed = asyncio.Event()
        if lock.unused:
            del self._locks[namespace]
