"""Who may work on a namespace at a time: many that read and write, or one that changes it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from shard_client.errors import CommandError


@dataclass
class _Lock:
    shared: int = 0
    exclusive: bool = False
    waiting_exclusive: int = 0
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class NamespaceLocks:
    """Shared and exclusive locks by namespace, as MongoDB's intent and exclusive locks.

    Reads and writes hold a namespace shared, a transaction until it ends; chunk migrations, DDL
    and shard-key changes hold it exclusively. An exclusive waiter holds back new shared holders.

    Args:
        timeout: seconds that anybody waits at most.
    """

    def __init__(self, timeout: float = 20.0) -> None:
        self._timeout = timeout
        self._locks: dict[str, _Lock] = {}

    @asynccontextmanager
    async def shared(self, namespace: str) -> AsyncIterator[None]:
        """Hold ``namespace`` together with other shared holders.

        Raises:
            CommandError: 24 LockTimeout.
        """
        await self.acquire_shared(namespace)
        try:
            yield
        finally:
            self.release_shared(namespace)

    async def acquire_shared(self, namespace: str) -> None:
        """Take the shared lock without a scope, as a transaction does.

        Raises:
            CommandError: 24 LockTimeout.
        """
        lock = self._locks.setdefault(namespace, _Lock())
        if lock.exclusive or lock.waiting_exclusive:
            await self._wait(
                namespace, lock, lambda: not lock.exclusive and not lock.waiting_exclusive
            )
        lock.shared += 1

    def release_shared(self, namespace: str) -> None:
        """Give back what ``acquire_shared`` took."""
        lock = self._locks[namespace]
        lock.shared -= 1
        self._changed(namespace, lock)

    @asynccontextmanager
    async def exclusive(self, *namespaces: str) -> AsyncIterator[None]:
        """Hold ``namespaces`` alone, taken in the order of their names.

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
                self._locks[name].exclusive = False
                self._changed(name, self._locks[name])

    async def _acquire_exclusive(self, namespace: str) -> None:
        lock = self._locks.setdefault(namespace, _Lock())
        with self._counted(namespace, lock):
            if lock.shared or lock.exclusive:
                await self._wait(namespace, lock, lambda: not lock.shared and not lock.exclusive)
            lock.exclusive = True

    @contextmanager
    def _counted(self, namespace: str, lock: _Lock) -> Iterator[None]:
        lock.waiting_exclusive += 1
        try:
            yield
        finally:
            lock.waiting_exclusive -= 1
            self._changed(namespace, lock)

    async def _wait(self, namespace: str, lock: _Lock, free: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                while not free():
                    waiter = asyncio.get_running_loop().create_future()
                    lock.waiters.append(waiter)
                    await waiter
        except TimeoutError:
            raise CommandError(
                24, f"Unable to acquire lock on {namespace} within {self._timeout:g} s",
                code_name="LockTimeout", labels=["TransientTransactionError"],
            ) from None  # fmt: skip

    def _changed(self, namespace: str, lock: _Lock) -> None:
        for waiter in lock.waiters:
            if not waiter.done():
                waiter.set_result(None)
        lock.waiters.clear()
        if not (lock.shared or lock.exclusive or lock.waiting_exclusive):
            self._locks.pop(namespace, None)
