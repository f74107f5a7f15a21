"""Tasks that end with a block or a part of the process, and calls that several callers share."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from math import inf
from typing import Any, Final, Generic, Self, TypeVar, TypeVarTuple

import anyio
import structlog
from anyio.abc import TaskGroup

from shard_client.errors import CommandError, ErrorCode

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


async def result_of(task: asyncio.Future[_T], ended: str) -> _T:
    """Return the result of a task or a future that the caller's cancellation does not end.

    Raises what the task raises, or CommandError 91 with the message ``ended`` if another has
    cancelled it.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise shutting_down(ended) from None
        raise


def shutting_down(message: str) -> CommandError:
    """Return the error of what has been ended, or does not begin any more: 91, with its label."""
    return CommandError(ErrorCode.ShutdownInProgress, message).with_change_stream_label()


class SharedAnswer(Generic[_T]):
    """Shares one call of ``ask`` among all callers of ``get`` that arrive during the previous one.

    Each caller gets the result of a call that was started after its ``get``, or the failure of one
    that ended after it: nobody waits for two that fail. ``name`` is the name of the task. Must be
    created in a running loop; ``await close()`` ends the call in flight, and allows no other.
    """

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, _T]], name: str) -> None:
        self._ask = ask
        self._name = name
        self._ended = f"the router ends: cannot {name}"
        self._closed = False
        self._asking: asyncio.Task[_T] | None = None
        self._waiting = 0

    @property
    def idle(self) -> bool:
        """Whether no call is in flight and no caller waits."""
        return self._asking is None and not self._waiting

    async def get(self) -> _T:
        """Return the result; raise what ``ask`` raises, or CommandError 91 after ``close``."""
        self._waiting += 1
        try:
            running = self._asking
            if running is not None:
                # The running call was started before this ``get``, so its result may be too old.
                await asyncio.wait((running,))
                if not running.cancelled() and running.exception() is not None:
                    running.result()  # which raises it with the traceback of the call alone
            if self._closed:
                raise shutting_down(self._ended)
            if self._asking is None or self._asking is running:
                task = asyncio.get_running_loop().create_task(self._ask(), name=self._name)
                self._asking = task
                task.add_done_callback(self._answered)
            return await result_of(self._asking, self._ended)
        finally:
            self._waiting -= 1
            if not self._waiting and self._asking is not None:
                self._asking.cancel()  # no caller waits any more

    async def close(self) -> None:
        """End the call in flight; callers fail, also later ones."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait((self._asking,))

    def _answered(self, task: asyncio.Task[_T]) -> None:
        if self._asking is task:
            self._asking = None
        if not task.cancelled():
            task.exception()  # retrieve it, since all callers may have been cancelled
