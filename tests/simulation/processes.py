"""The processes of a simulation, mainly a router that starts, drains, dies and restarts."""

import asyncio
import warnings
from collections.abc import Callable, Mapping
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any

from router.assembly import process_parts, serve_process
from router.config.settings import load_settings, settings_of_streams
from router.stream_settings import StreamSettings
from shard_client.wire.connection import Address
from tests.doubles.probed_replica_set import ProbedReplicaSet
from tests.simulation.loop import PROCESS, SimulatedLoop
from tests.simulation.trace import Trace

# A group's task that ``kill`` cancels before its first step never awaits what it was to run.
warnings.filterwarnings("ignore", r"coroutine 'OwnedTasks\.run", RuntimeWarning)

_DRAIN_MS = 500
_MOST_SHUTDOWN = 20.0
_PROBE_TIMEOUT = 0.4


def in_process(name: str, make: Callable[[], Any]) -> asyncio.Task[Any]:
    """Run the coroutine that ``make`` returns as part of the process ``name``."""
    context = copy_context()
    context.run(PROCESS.set, name)
    loop = asyncio.get_running_loop()
    return loop.create_task(context.run(make), name=name, context=context)


class RouterProcess:
    """The router at one port: ``start``, ``terminate`` (SIGTERM), ``kill`` (kill -9)."""

    def __init__(
        self,
        loop: SimulatedLoop,
        trace: Trace,
        wall: Callable[[], float],
        configdb: str,
        port: int,
        parameters: Mapping[str, Any],
        *,
        upstream: str | None = None,
        feed_port: int | None = None,
        settings_of: Callable[[Mapping[str, Any]], StreamSettings] = settings_of_streams,
    ) -> None:
        self.port = port
        self._limits_of = settings_of
        self._feed_port = feed_port
        self._loop = loop
        self._trace = trace
        self._wall = wall
        self._settings = load_settings(
            {
                "sharding": {"configDB": configdb},
                "net": {"port": port},
                "upstream": upstream,
                "feed": {"port": feed_port},
                "setParameter": {
                    "mongosShutdownTimeoutMillisForSignaledShutdown": _DRAIN_MS,
                    **parameters,
                },
            }
        )
        self._incarnation = 0
        self._stop = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    @property
    def name(self) -> str:
        """The name of the current process."""
        return f"router{self._incarnation}"

    @property
    def address(self) -> Address:
        return "127.0.0.1", self.port

    @property
    def feed(self) -> Address:
        assert self._feed_port is not None
        return "127.0.0.1", self._feed_port

    @property
    def running(self) -> bool:
        return self._task is not None

    def start(self) -> None:
        """Start a new process."""
        assert self._task is None
        self._incarnation += 1
        self._stop = asyncio.Event()
        self._trace.note(f"start {self.name}")
        self._task = in_process(self.name, self._serve)
        self._task.add_done_callback(self._ended)

    async def _serve(self) -> None:
        parts = process_parts(
            self._settings,
            ["mergerouter", "serve"],
            replica_set=lambda name, seeds: ProbedReplicaSet(
                name, seeds, probe_timeout=_PROBE_TIMEOUT
            ),
            now=lambda: datetime.fromtimestamp(self._wall(), UTC),
            settings_of=self._limits_of,
        )
        await serve_process(parts, self._stop)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._trace.problem(f"{task.get_name()} crashed: {error!r}")

    async def terminate(self) -> None:
        """Send SIGTERM; the process must drain and end in bounded time, without leaks."""
        task, self._task = self._task, None
        assert task is not None
        name = self.name
        self._trace.note(f"SIGTERM {name}")
        began = self._loop.time()
        self._stop.set()
        await asyncio.wait({task}, timeout=_MOST_SHUTDOWN)
        if not task.done():
            self._trace.problem(f"{name} does not end")
            return
        self._trace.note(f"{name} ended after {self._loop.time() - began:.3f} s")
        await asyncio.sleep(0)
        for left in self._loop.tasks_of(name):
            self._trace.problem(f"{name} left a task behind: {left.get_name()}")
        for link in self._loop.network.links_of(name):
            end = link.near if link.client == name else link.far
            if not end.is_closing():  # bytes that the peer has not taken may still be in transit
                self._trace.problem(f"{name} left a connection open: {link}")

    async def kill(self) -> None:
        """End the process and its connections at once; nothing it does later has an effect."""
        self._task = None
        name = self.name
        self._trace.note(f"kill {name}")
        self._loop.network.kill_process(name)
        for task in self._loop.tasks_of(name):
            task.cancel()
        await asyncio.sleep(0)
