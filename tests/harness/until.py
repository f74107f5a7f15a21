"""Waiting for what the loop will bring about by itself."""

import asyncio
from collections.abc import Callable

PATIENCE = 30.0
"""Seconds in which what must come has come, however busy the machine is."""


async def until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Let the loop run until ``condition()`` is true; TimeoutError after ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        while True:
            if condition():
                return
            await asyncio.sleep(0)
