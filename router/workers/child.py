"""The parent's side of one worker: its start, its process and its message channel."""

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Self

import structlog
from bson.objectid import ObjectId

from router.config.settings import Settings
from router.peers.messages import Load, WorkerMessage, WorkerSignal
from router.workers.channel import Channel, socket_pair

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The parameters of a worker; all but ``number`` are common to all workers."""

    number: int
    """The worker's number, from 1."""
    mark: int
    """The mark in all cursor ids of the router."""
    folder: Path
    """The router's private folder."""
    process_id: ObjectId
    """The process id in all hello replies."""
    started: datetime
    settings: Settings
    arguments: tuple[str, ...]
    port: int
    """The router's port for drivers."""
    verbosity: int
    """The log level at present, which a client may have set."""


_LEAST_WHEN_SILENT = 0.5
_SILENT_FOR_LONG = 1.0


class Child:
    """The parent's handle of one worker, created by ``start``.

    Connections and messages (docs/workers.md) go over ``channel``. ``drained`` is set
    when the worker has ended its drain, or is gone. ``clients`` are the addresses of the drivers
    that it serves, by the numbers of their connections.
    """

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.number = number
        self.process = process
        self.drained = asyncio.Event()
        self.load = Load()
        self.clients: dict[int, str | None] = {}
        self.channel = channel
        self._answered = asyncio.Event()
        self._answered.set()
        self._asked_at = 0.0

    @classmethod
    async def start(cls, start: WorkerStart, program: str = "router.workers.worker") -> Self:
        """Start a worker's process, which runs the module ``program``; raises OSError."""
        ours, theirs = socket_pair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    program,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.PIPE,
                )
            except BaseException:
                ours.close()
                raise
        child = cls(start.number, process, Channel(ours))
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(start))
        process.stdin.write_eof()
        return child

    async def reports(self) -> AsyncIterator[WorkerMessage]:
        """Yield the worker's messages until it is gone, but not those about its load and drain."""
        while (received := await self.channel.receive()) is not None:
            message, _ = received
            match message:
                case WorkerSignal.DRAINED:
                    self.drained.set()
                case Load():
                    self.load = message
                    self._answered.set()
                case _:
                    yield message
        self.drained.set()

    @property
    def hangs(self) -> bool:
        """Whether a load request has been unanswered for a second or more."""
        waited = asyncio.get_running_loop().time() - self._asked_at
        return waited >= _SILENT_FOR_LONG and not self._answered.is_set()

    async def ask_load(self, timeout: float) -> None:
        """Request the worker's load and wait up to ``timeout`` seconds for it.

        A worker that does not answer in time counts as busy until it does, without another wait.
        """
        if not self._answered.is_set():
            return
        self._answered.clear()
        self._asked_at = asyncio.get_running_loop().time()
        self.channel.send(WorkerSignal.REPORT_LOAD)
        try:
            async with asyncio.timeout(timeout):
                await self._answered.wait()
        except TimeoutError:
            self.load = replace(self.load, busy=max(self.load.busy, _LEAST_WHEN_SILENT))
