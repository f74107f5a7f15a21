"""Tasks that belong to a block, and end with it."""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from types import TracebackType
from typing import Final, Self, TypeVarTuple

import anyio
import structlog
from anyio.abc import TaskGroup

log = structlog.get_logger(component="CONTROL")

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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
