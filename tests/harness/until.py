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


def wait_for(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    """Block until ``condition()`` is true.

    Raises:
        AssertionError: it is still false after ``timeout`` seconds; the message names ``what``.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.02)
