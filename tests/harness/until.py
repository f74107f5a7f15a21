"""Waiting for what the loop will bring about by itself."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout: float = 5.0) -> None:
    """Let the loop run until ``condition()`` is true; TimeoutError after ``timeout`` seconds."""
    async with asyncio.timeout(timeout):
        while True:
            if condition():
                return
            await asyncio.sleep(0)
