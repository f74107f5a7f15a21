"""Tasks that belong to a block: what ends them, and what they end."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest
import structlog.testing

from router.tasks import AwaitedTasks, OwnedTasks
from tests.harness.until import until


async def fail() -> None:
    raise ValueError("a defect")


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def cancel_its_scope() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("step", "logged"),
    [(fail, ["Unexpected error"]), (cancel_itself, []), (cancel_its_scope, [])],
    ids=lambda step: getattr(step, "__name__", ""),
)
async def test_a_task_ends_alone(step: Callable[[], Awaitable[None]], logged: list[str]) -> None:
    ended: list[str] = []

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("other")

    async def last() -> None:
        await step()
        ended.append("last")

    with structlog.testing.capture_logs() as lines:
        async with OwnedTasks() as tasks:
            tasks.run(other)
            before = asyncio.all_tasks()
            tasks.run(last)
            await until(lambda: asyncio.all_tasks() == before)
            assert "other" not in ended
        assert "other" in ended
    assert [line["event"] for line in lines] == logged


@pytest.mark.parametrize("end", [OSError, asyncio.CancelledError])
async def test_the_end_of_a_block_awaits_its_tasks_and_keeps_its_exception(
    end: type[BaseException],
) -> None:
    closed: list[str] = []
    running = asyncio.Event()

    async def close_slowly() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.move_on_after(10, shield=True):
                await asyncio.sleep(0.01)
            closed.append("closed")

    async def serve() -> None:
        async with OwnedTasks() as tasks:
            tasks.run(close_slowly)
            await running.wait()
            if end is OSError:
                raise OSError("port in use")
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve())
    await running.wait()
    if end is not OSError:
        serving.cancel()
    with pytest.raises(end):
        await serving
    assert closed == ["closed"]


async def test_tasks_that_are_started_meanwhile_are_awaited_too() -> None:
    tasks, ended = AwaitedTasks(), []

    async def work(left: int) -> None:
        await asyncio.sleep(0)
        if left:
            tasks.start(work(left - 1), "work")
        ended.append(left)

    tasks.start(work(3), "work")
    assert len(tasks) == 1
    await tasks.wait()
    assert ended == [3, 2, 1, 0]
    assert not tasks
