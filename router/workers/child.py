"""The parent's side of one worker: its start, its process and its message channel."""

import asyncio
import pickle
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import structlog
from bson.objectid import ObjectId

from router.config.settings import Settings
from router.workers.channel import Channel, HandedConnection, hand_over
from router.workers.placement import Load

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The parameters of a worker; all but ``number`` are common to all workers.

    Args:
        number: the worker's number, from 1 to ``count``.
        count: the number of workers.
        mark: the mark in all cursor ids of the router.
        folder: the router's private folder.
        process_id: the process id in all hello replies.
        started: the start time of the router.
        settings: the router's settings.
        arguments: the router's command line.
        ports: the parent's listening ports, by the names of the log attributes.
        verbosity: the log level at present, which a client may have set.
    """

    number: int
    count: int
    mark: int
    folder: Path
    process_id: ObjectId
    started: datetime
    settings: Settings
    arguments: tuple[str, ...]
    ports: Mapping[str, int]
    verbosity: int


_LEAST_WHEN_SILENT = 0.5
_SILENT_FOR_LONG = 1.0
_PROGRAM = "router.workers.worker"


class Child:
    """The parent's handle of one worker, created by ``start``.

    ``drained`` is set when the worker has ended its drain, ``gone`` when its channel has closed.
    ``ended`` collects the numbers of the connections that have ended.
    """

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        channel: Channel,
        handoff_socket: socket.socket,
    ) -> None:
        self.number = number
        self.process = process
        self.drained = asyncio.Event()
        self.gone = asyncio.Event()
        self.ended: list[int] = []
        self.load = Load()
        self._channel = channel
        self._handoff_socket = handoff_socket
        self._answer: asyncio.Future[None] | None = None
        self._silent_since: float | None = None

    @classmethod
    async def start(cls, start: WorkerStart, program: str = _PROGRAM) -> Self:
        """Start a worker's process, which runs the module ``program``; raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        our_handoff, their_handoff = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, their_handoff:
            descriptors = (theirs.fileno(), their_handoff.fileno())
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    program,
                    *map(str, descriptors),
                    pass_fds=descriptors,
                    stdin=asyncio.subprocess.PIPE,
                )
            except BaseException:
                ours.close()
                our_handoff.close()
                raise
        our_handoff.setblocking(False)
        child = cls(start.number, process, await Channel.over(ours), our_handoff)
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(start))
        process.stdin.write_eof()
        return child

    async def reports(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what the worker reports, until it is gone.

        It reports that it is ``ready``; the cluster's ``identity``, and the ``upstream`` that it
        has chosen; which command of a client has ``changed`` all workers, with the ``verbosity``.
        """
        while (message := await self._channel.receive()) is not None:
            match message:
                case {"drained": _}:
                    self.drained.set()
                case {"load": load, "ended": ended}:
                    self.load = Load(**load)
                    self.ended.extend(ended)
                    self._silent_since = None
                    if self._answer is not None:
                        self._answer.set_result(None)
                        self._answer = None
                case _:
                    yield message
        self.gone.set()

    @property
    def hangs(self) -> bool:
        """Whether a load request has been unanswered for a second or more."""
        silent_since, now = self._silent_since, asyncio.get_running_loop().time()
        return silent_since is not None and now - silent_since >= _SILENT_FOR_LONG

    async def ask_load(self, timeout: float) -> None:
        """Request the worker's load and wait up to ``timeout`` seconds for it.

        A worker that does not answer in time counts as busy. There is no wait for a worker that
        hangs.
        """
        loop = asyncio.get_running_loop()
        if self._answer is None:
            self._answer = loop.create_future()
            self._channel.send(load=True)
        if self.hangs:
            return
        done, _waiting = await asyncio.wait((self._answer,), timeout=timeout)
        if not done:
            self._silent_since = self._silent_since or loop.time()
            self.load = replace(self.load, busy=max(self.load.busy, _LEAST_WHEN_SILENT))

    def hand_over(self, handed: HandedConnection) -> None:
        """Pass a client's connection to the worker; raises OSError if it cannot accept one."""
        hand_over(self._handoff_socket, handed)

    def send(self, **message: Any) -> None:
        """Send the worker a message (``WorkerRuntime`` has them); it is lost if it is gone."""
        self._channel.send(**message)

    def close(self) -> None:
        """Close the channel and the connection socket; a worker that still runs then exits."""
        self._channel.close()
        self._handoff_socket.close()
