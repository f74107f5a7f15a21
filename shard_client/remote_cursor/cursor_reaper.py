"""The cursors that nobody reads any more, which are killed when their members answer."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import NamedTuple

import structlog

from shard_client.backoff import Backoff
from shard_client.remote_cursor.open_cursor import Borrow, OpenCursor
from shard_client.wire.connection import Address, format_address

log = structlog.get_logger()

KILL_TASK = "kill cursors late"
"""The name of the tasks that kill cursors later."""

_TIMEOUT = 5.0
_LAST_ATTEMPT = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0


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
        most: cursors of one member that are tried again; those next in turn are given up.
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
        self._closed = False

    def __len__(self) -> int:
        """Return the number of cursors that are still to be killed."""
        return sum(map(len, self._left.values()))

    def add(self, cursor: OpenCursor) -> None:
        """Kill ``cursor`` when its member answers again; give it up after ``close``."""
        if self._closed:
            return
        left = self._left.setdefault(cursor.address, deque())
        left.append(_Left(cursor, self._loop.time() + self._lasting))
        if cursor.address not in self._tasks:
            task = self._loop.create_task(self._run(cursor.address, left), name=KILL_TASK)
            self._tasks[cursor.address] = task

    async def close(self) -> None:
        """Try once more to kill the remaining cursors, for 3 seconds at most; give up the rest."""
        self._closed = True
        left, tasks = list(self._left.values()), list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ATTEMPT):
                await asyncio.gather(*map(self._kill, left))
        self._left.clear()
        self._tasks.clear()

    async def _run(self, address: Address, left: deque[_Left]) -> None:
        member = format_address(address)
        backoff = Backoff(self._first_pause, _LONGEST_PAUSE)
        killed = given_up = attempts = 0
        try:
            while left:
                await asyncio.sleep(backoff.next_pause())
                while left and (len(left) > self._most or left[0].until <= self._loop.time()):
                    left.popleft()
                    given_up += 1
                killed += await self._kill(left)
                attempts += 1
                if left and attempts == 1:
                    log.info("cursors left on a member", member=member)
        finally:
            self._left.pop(address, None)
            self._tasks.pop(address, None)
            if attempts > 1:
                log.info("cursors killed late", member=member, killed=killed, given_up=given_up)

    async def _kill(self, left: deque[_Left]) -> int:
        """Kill cursors of one member until one attempt fails; return the number killed.

        The next call begins with another cursor: the member may have refused only this one.
        """
        killed = 0
        while left and await left[0].cursor.kill(self._borrow, _TIMEOUT):
            left.popleft()
            killed += 1
        left.rotate(-1)
        return killed
