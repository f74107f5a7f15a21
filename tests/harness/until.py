"""Waiting for conditions: those that the loop's tasks make true, and those of other processes."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which an expected condition must be true, even on a busy machine."""


async def until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true; raise TimeoutError after ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Deadline:
    """The end of a wait of ``timeout`` seconds, which begins now."""

    def __init__(self, timeout: float = PATIENCE) -> None:
        self._at = time.monotonic() + timeout

    @property
    def passed(self) -> bool:
        """Whether the wait has ended."""
        return time.monotonic() >= self._at

    def check(self, what: str, seen: object = None) -> None:
        """Raise AssertionError if the wait has ended; its message has ``what`` and ``seen``."""
        if self.passed:
            found = "" if seen is None else f", after {seen}"
            raise AssertionError(f"timed out waiting for {what}{found}")


def wait_for(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    """Block until ``condition()`` is true.

    Raises:
        AssertionError: it is still false after ``timeout`` seconds; the message names ``what``.
    """
    deadline = Deadline(timeout)
    while not condition():
        deadline.check(what)
        time.sleep(0.02)
