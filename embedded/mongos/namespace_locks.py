"""Locks on namespaces: shared for reads and writes, exclusive for changes of the namespace."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from shard_client.errors import CommandError


@dataclass
class _Lock:
    users: int = 0
    shared: int = 0
    exclusive: bool = False
    waiting_exclusive: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def open_to_sharing(self) -> bool:
        return not self.exclusive and not self.waiting_exclusive

    @property
    def free(self) -> bool:
        return not self.exclusive and not self.shared

    def changed(self) -> None:
        """Wake all waiters, so that they check the lock again."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class NamespaceLocks:
    """Shared and exclusive locks by namespace, similar to MongoDB's intent and exclusive locks.

    Reads and writes hold a shared lock, a transaction until it ends. Chunk migrations, DDL and
    shard-key changes hold an exclusive lock. An exclusive waiter blocks new shared holders.

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
        lock = self._enter(namespace)
        try:
            await self._wait(namespace, lock, lambda: lock.open_to_sharing)
        except BaseException:
            self._leave(namespace, lock)
            raise
        lock.shared += 1

    def release_shared(self, namespace: str) -> None:
        """Release a lock that ``acquire_shared`` acquired."""
        lock = self._locks[namespace]
        lock.shared -= 1
        self._leave(namespace, lock)

    @asynccontextmanager
    async def exclusive(self, *namespaces: str) -> AsyncIterator[None]:
        """Hold exclusive locks on ``namespaces`` during the block, acquired in name order.

        Raises:
            CommandError: 24 LockTimeout.
        """
        held: list[str] = []
        try:
            for name in sorted(set(namespaces)):
                await self._acquire_exclusive(name)
                held.append(name)
            yield
        finally:
            for name in held:
                lock = self._locks[name]
                lock.exclusive = False
                self._leave(name, lock)

    async def _acquire_exclusive(self, namespace: str) -> None:
        lock = self._enter(namespace)
        lock.waiting_exclusive += 1
        try:
            await self._wait(namespace, lock, lambda: lock.free)
        except BaseException:
            lock.waiting_exclusive -= 1
            self._leave(namespace, lock)
            raise
        lock.waiting_exclusive -= 1
        lock.exclusive = True

    async def _wait(self, namespace: str, lock: _Lock, ready: Callable[[], bool]) -> None:
        if ready():
            return
        try:
            async with asyncio.timeout(self._timeout):
                while not ready():
                    waiter = asyncio.get_running_loop().create_future()
                    lock.waiters.append(waiter)
                    await waiter
        except TimeoutError:
            raise CommandError(
                24,
                f"Unable to acquire lock on {namespace} within {self._timeout:g} s",
                code_name="LockTimeout",
                labels=["TransientTransactionError"],
            ) from None

    def _enter(self, namespace: str) -> _Lock:
        lock = self._locks.setdefault(namespace, _Lock())
        lock.users += 1
        return lock

    def _leave(self, namespace: str, lock: _Lock) -> None:
        lock.users -= 1
        lock.changed()
        if not lock.users:
            del self._locks[namespace]
