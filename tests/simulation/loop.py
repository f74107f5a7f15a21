"""A deterministic event loop in virtual time, without waiting and without real sockets."""

import asyncio
import itertools
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from tests.simulation.network import Network, SimulatedServer

T = TypeVar("T")

PROCESS: ContextVar[str] = ContextVar("process", default="world")
"""The simulated process to which the running task, callback or socket belongs."""

_EPOCH = 1_000.0
_MOST_TURNS_AT_ONE_TIME = 50_000
_MOST_TURNS = 3_000_000


class Stuck(BaseException):
    """The simulation makes no progress: nothing is left to wait for, or time stands still."""


class OrderedTask(asyncio.Task[T]):
    """A task whose hash is its number, so that sets of tasks iterate alike in each run."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], *, number: int, **options: Any) -> None:
        self.number = number
        context = options.get("context")
        self.process = PROCESS.get() if context is None else context.get(PROCESS, "world")
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class OrderedFuture(asyncio.Future[T]):
    """A future whose hash is its number, so that sets of futures iterate alike in each run."""

    def __init__(self, *, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(**options)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _NoSelector:
    """Replaces the system's selector: waiting only advances the clock."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.pass_time(timeout)
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order of a virtual clock; ``network`` provides the sockets."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._now = _EPOCH
        self._turns = 0
        self._turns_now = 0
        self._selector = _NoSelector(self)
        self._numbers = itertools.count(1)
        self._tasks_made: dict[OrderedTask[Any], None] = {}
        self.network = network
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._now

    def pass_time(self, timeout: float | None) -> None:
        """Advance the clock by ``timeout`` seconds; raise Stuck if it is None (wait forever)."""
        if timeout is None:
            raise Stuck("nothing is left to wait for")
        self._turns += 1
        if timeout > 0:
            self._now += timeout
            self._turns_now = 0
        else:
            self._turns_now += 1
        if self._turns_now > _MOST_TURNS_AT_ONE_TIME or self._turns > _MOST_TURNS:
            raise Stuck(f"{self._turns} turns, {self._turns_now} of them at {self._now:.6f}")

    def tasks_of(self, process: str) -> list[OrderedTask[Any]]:
        """Return the tasks of ``process`` that have not ended, the oldest first."""
        return [each for each in self._tasks_made if each.process == process]

    def create_future(self) -> OrderedFuture[Any]:
        return OrderedFuture(number=next(self._numbers), loop=self)

    def _make_task(
        self, _loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> OrderedTask[Any]:
        task = OrderedTask(coroutine, number=next(self._numbers), loop=self, **options)
        self._tasks_made[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: Any) -> None:
        self._tasks_made.pop(task, None)

    # Sockets.

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert options.get("ssl") is None, "TLS is not simulated"
        assert port is not None
        return await self.network.connect(self, protocol_factory, port, PROCESS.get())

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **_options: Any,
    ) -> SimulatedServer:
        return self.network.listen(self, protocol_factory, port or 0, PROCESS.get())

    # Hooks of real loops that need no work here.

    def _process_events(self, _events: Any) -> None:
        """Do nothing, since there are no system events."""

    def _write_to_self(self) -> None:
        """Do nothing, since the loop never sleeps."""

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, *_args: Any
    ) -> Any:
        raise RuntimeError("no threads on the data path")


def run(loop: SimulatedLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on ``loop`` to its end and always close the loop."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        _end(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _end(loop: SimulatedLoop) -> None:
    """Cancel the remaining tasks, so that the garbage collector runs none of their code."""
    for _ in range(100):
        left = [task for task in loop._tasks_made if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()
        try:
            loop.run_until_complete(_turns(20))
        except (Stuck, RuntimeError):
            return


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
