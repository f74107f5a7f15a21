"""An async context manager in a task of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

_Value = TypeVar("_Value")


@asynccontextmanager
async def hosted(context: AbstractAsyncContextManager[_Value]) -> AsyncIterator[_Value]:
    """Enter and leave ``context`` in one task, although the caller may use two.

    pytest-asyncio sets up and tears down fixtures in different tasks, which task groups refuse.
    """
    entered: asyncio.Future[_Value] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def host() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    task = asyncio.create_task(host())
    value = await entered
    try:
        yield value
    finally:
        leave.set()
        await task
