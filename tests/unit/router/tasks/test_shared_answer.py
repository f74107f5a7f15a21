"""One call serves those who ask while the one before it runs."""

import asyncio
from contextlib import suppress

from router.tasks import SharedAnswer
from shard_client.errors import CommandError
from tests.harness.until import until


class Asked:
    """A call that the test answers, with an error if there is one; ``begun`` counts the calls."""

    def __init__(self, error: CommandError | None = None) -> None:
        self.error = error
        self.begun = 0
        self.ended = 0
        self.answer = asyncio.Event()
        self.shared = SharedAnswer(self._ask, "ask the time")

    async def _ask(self) -> int:
        self.begun += 1
        number = self.begun
        try:
            await self.answer.wait()
        finally:
            self.ended += 1
        if self.error is not None:
            raise self.error
        return number


async def test_a_result_is_never_older_than_the_question() -> None:
    asked = Asked()
    first = asyncio.create_task(asked.shared.get())
    await until(lambda: asked.begun == 1)
    later = [asyncio.create_task(asked.shared.get()) for _ in range(3)]
    await asyncio.sleep(0)
    asked.answer.set()
    assert await first == 1
    assert await asyncio.gather(*later) == [2, 2, 2]
    assert asked.shared.idle


async def test_a_call_ends_with_the_last_caller_that_waits() -> None:
    asked = Asked()
    callers = [asyncio.create_task(asked.shared.get()) for _ in range(2)]
    await until(lambda: asked.begun == 1)
    callers[0].cancel()
    await asyncio.sleep(0.01)
    assert not asked.ended
    callers[1].cancel()
    await until(lambda: asked.ended == 1)
    for caller in callers:
        with suppress(asyncio.CancelledError):
            await caller
    asked.answer.set()
    assert await asked.shared.get() == asked.begun


async def test_nobody_waits_for_two_requests_that_fail() -> None:
    asked = Asked(CommandError(133, "no answer within 30 s"))
    callers = [asyncio.create_task(asked.shared.get()) for _ in range(2)]
    await until(lambda: asked.begun == 1)
    callers.append(asyncio.create_task(asked.shared.get()))
    await asyncio.sleep(0)
    asked.answer.set()
    await asyncio.wait(callers)
    assert [str(each.exception()) for each in callers] == [str(callers[0].exception())] * 3
    assert asked.begun == 1


async def test_closing_ends_the_call_and_starts_no_other() -> None:
    asked = Asked()
    callers = [asyncio.create_task(asked.shared.get())]
    await until(lambda: asked.begun == 1)
    callers.append(asyncio.create_task(asked.shared.get()))  # which waits for the call to end
    await asyncio.sleep(0)
    await asked.shared.close()
    callers.append(asyncio.create_task(asked.shared.get()))
    await asyncio.wait(callers)
    errors = [each.exception() for each in callers]
    assert [error.code for error in errors if isinstance(error, CommandError)] == [91] * 3
    assert asked.begun == 1
