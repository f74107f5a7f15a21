"""Run work on large messages in threads, so that it does not block the event loop.

Compression releases the interpreter's lock. Up to INLINE_SIZE bytes a thread costs more than it
saves.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

INLINE_SIZE = 64 * 1024
"""Most bytes compressed or decompressed on the loop: two milliseconds with zlib."""

_THREADS = 2

P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``work``, in a thread if ``size`` is large; return its result or raise its exception.

    ``size`` is the number of bytes that ``work`` handles. A cancelled caller does not wait for the
    thread; the result is dropped.
    """
    if size <= INLINE_SIZE:
        return work(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads(), lambda: work(*args, **kwargs))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="compression")
