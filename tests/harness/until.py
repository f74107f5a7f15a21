"""Waiting for conditions that other tasks of the loop make true."""

import asyncio
from collections.abc import Callable

PATIENCE = 30.0
"""Seconds after which an expected condition must be true, even on a busy machine."""


async def until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Wait until ``condition()`` is true; raise TimeoutError after ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
