"""A cursor that is open on a server: the commands that read and kill it, and who kills it later."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from itertools import starmap
from typing import Any, NamedTuple

import bson
import structlog
from bson.int64 import Int64

from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Address, Connection, format_address

log = structlog.get_logger()

KILL_TASK = "kill cursors late"
"""The name of the tasks that kill cursors later."""

_TIMEOUT = 5.0
_LAST_ATTEMPT = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0

Borrow = Callable[[Address, float], AbstractAsyncContextManager[Connection]]
"""Provides an idle connection to the member at an address; the seconds limit connecting. Entering
raises CommandError, NetworkError."""


@dataclass(frozen=True, slots=True)
class OpenCursor:
    """The cursor ``cursor_id`` of ``namespace`` ("db.collection") on the member at ``address``."""

    address: Address
    namespace: str
    cursor_id: int

    def get_more(self, batch_size: int, await_ms: int) -> bytes:
        """Return the raw ``getMore`` that waits at most ``await_ms`` milliseconds for events.

        Source: docs/protocol.md#cursor-replies.
        """
        database, _, collection = self.namespace.partition(".")
        return bson.encode(
            {
                "getMore": Int64(self.cursor_id),
                "collection": collection,
                "batchSize": batch_size,
                "maxTimeMS": await_ms,
                "$db": database,
            }
        )

    async def kill(self, borrow: Borrow, deadline: float) -> bool:
        """Kill the cursor over a borrowed connection to its member; False if that failed.

        ``deadline`` is on the running loop's clock.
        """
        loop = asyncio.get_running_loop()
        try:
            async with borrow(self.address, max(0.001, deadline - loop.time())) as connection:
                return await self.kill_over(connection, max(0.001, deadline - loop.time()))
        except (CommandError, NetworkError):
            return False

    async def kill_over(self, connection: Connection, timeout: float) -> bool:
        """Kill the cursor over an idle connection to its member; False if that failed.

        ``timeout`` is in seconds. A cursor that no longer exists counts as killed.
        """
        database, _, collection = self.namespace.partition(".")
        command = {"killCursors": collection, "cursors": [Int64(self.cursor_id)]}
        try:
            await connection.command(database, command, timeout=timeout)
        except (CommandError, NetworkError):
            return False
        return True


async def kill_all(
    left: list[OpenCursor],
    borrow: Borrow,
    deadline: float,
    kill_later: Callable[[OpenCursor], None],
) -> None:
    """Kill cursors before ``deadline`` on the running loop's clock.

    From the first whose member does not answer in time, or where the task is cancelled, they are
    passed to ``kill_later``.
    """
    try:
        while left and await left[-1].kill(borrow, deadline):
            left.pop()
    finally:
        for each in left:
            kill_later(each)


def encode_opening(opening: tuple[str, Mapping[str, Any]], clock: ClusterClock) -> bytes:
    """Return the raw command that opens a cursor: its database, its ``aggregate``, and the time."""
    database, command = opening
    command = {**command, "$db": database}
    if clock.raw is not None:
        command["$clusterTime"] = clock.document
    return bson.encode(command)


class _Left(NamedTuple):
    cursor: OpenCursor
    until: float


class CursorReaper:
    """The cursors that nobody reads: those of failures, and those that closed streams have left.

    One task for each member kills them after a pause, and tries again, with growing pauses, until
    the member has answered a ``killCursors`` for each cursor. A member ends idle cursors itself
    after ten minutes (``cursorTimeoutMillis``), so that the attempts end then too. Create it in a
    running loop.

    Args:
        borrow: provides the connections to members.
        lasting: seconds during which attempts are made for a cursor.
        most: cursors remembered for one member; the oldest are given up first.
        first_pause: upper bound in seconds of the pause before the first attempt.
    """

    def __init__(
        self,
        borrow: Borrow,
        *,
        lasting: float = 600.0,
        most: int = 10_000,
        first_pause: float = _FIRST_PAUSE,
    ) -> None:
        self._borrow = borrow
        self._lasting = lasting
        self._most = most
        self._first_pause = first_pause
        self._loop = asyncio.get_running_loop()
        self._left: dict[Address, deque[_Left]] = {}
        self._tasks: dict[Address, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """Return the number of cursors that are still to be killed."""
        return sum(map(len, self._left.values()))

    def add(self, cursor: OpenCursor) -> None:
        """Kill ``cursor`` when its member answers again."""
        left = self._left.setdefault(cursor.address, deque(maxlen=self._most))
        left.append(_Left(cursor, self._loop.time() + self._lasting))
        if cursor.address not in self._tasks:
            task = self._loop.create_task(self._run(cursor.address, left), name=KILL_TASK)
            self._tasks[cursor.address] = task

    async def close(self) -> None:
        """Try once more to kill the remaining cursors, for 3 seconds at most; give up the rest."""
        left, tasks = dict(self._left), list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ATTEMPT):
                await asyncio.gather(*starmap(self._kill, left.items()))
        self._left.clear()
        self._tasks.clear()

    async def _run(self, address: Address, left: deque[_Left]) -> None:
        member = format_address(address)
        backoff = Backoff(self._first_pause, _LONGEST_PAUSE)
        killed = given_up = attempts = 0
        try:
            while left:
                await asyncio.sleep(backoff.next_pause())
                while left and left[0].until <= self._loop.time():
                    left.popleft()
                    given_up += 1
                killed += await self._kill(address, left)
                attempts += 1
                if left and attempts == 1:
                    log.info("cursors left on a member", member=member)
        finally:
            self._left.pop(address, None)
            self._tasks.pop(address, None)
            if attempts > 1:
                log.info("cursors killed late", member=member, killed=killed, given_up=given_up)

    async def _kill(self, address: Address, left: deque[_Left]) -> int:
        """Kill cursors until one attempt fails; return the number killed."""
        killed = 0
        try:
            async with self._borrow(address, _TIMEOUT) as connection:
                while left:
                    last = left[0]
                    if not await last.cursor.kill_over(connection, _TIMEOUT):
                        break
                    killed += 1
                    if left and left[0] is last:
                        left.popleft()
        except (CommandError, NetworkError) as error:
            log.debug("cannot kill cursors yet", member=format_address(address), error=str(error))
        return killed
