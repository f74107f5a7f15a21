"""Tasks that belong to a block or a part, and end with it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from math import inf
from typing import Any, Final, Self, TypeVar, TypeVarTuple

import anyio
import structlog
from anyio.abc import TaskGroup

log = structlog.get_logger(component="CONTROL")

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")

END_TIMEOUT: Final = 5.0
"""Seconds within which a part ends what it owns, when its block ends."""


class OwnedTasks:
    """The tasks of an ``async with`` block; at its end they are cancelled, and awaited.

    A task that fails is logged, and ends alone, as does one that is cancelled alone: neither ends
    the block or another task. An exception of the block propagates unchanged. Enter and leave it
    in the same task.
    """

    _group: TaskGroup

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)

    def run(
        self,
        step: Callable[[*_Arguments], Awaitable[None]],
        *arguments: *_Arguments,
        name: str | None = None,
    ) -> None:
        """Run ``step`` with ``arguments`` in a task; a callback of the loop may call this, too."""

        async def guarded() -> None:
            try:
                await step(*arguments)
            except asyncio.CancelledError:
                if anyio.current_effective_deadline() == -inf:
                    raise  # with the block; a group would take any other one for its end
            except Exception:
                log.exception("Unexpected error", task=name)

        name = name or step.__name__
        self._group.start_soon(guarded, name=name)


class AwaitedTasks(set[asyncio.Task[Any]]):
    """The running tasks of a part that, as it closes, waits for them: they end by themselves."""

    def start(
        self, work: Coroutine[Any, Any, _T], name: str, context: Context | None = None
    ) -> asyncio.Task[_T]:
        """Run ``work`` in a task, and return that; its result is the caller's to take."""
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def wait(self) -> None:
        """Wait until all have ended, also those that are started meanwhile."""
        while self:
            await asyncio.wait(self)
