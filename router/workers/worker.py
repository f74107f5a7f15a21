"""A worker process: ``python -m router.workers.worker CHANNEL HANDOFF``, started by the parent.

The two arguments are the descriptors of the worker's ends of the socket pairs. It reads its other
parameters, a ``WorkerStart``, from standard input.
"""

import asyncio
import os
import pickle
import shutil
import signal
import socket
import sys
import time
from collections import deque
from typing import Any

import structlog
import uvloop

from router.allocator import collect_less_often, keep_freed_memory
from router.catalog.upstream import UpstreamMongos
from router.catalog.version import ServerIdentity
from router.commands.call import Node
from router.commands.topology_version import TopologyVersion
from router.config.log_lines import configure_logging
from router.feed.feed import FeedPort
from router.owned_tasks import OwnedTasks
from router.peers.peers import Peers, private_address
from router.server.listener import Listener
from router.service import assemble
from router.workers.channel import DRIVER, Arrivals, Channel, HandedConnection
from router.workers.child import WorkerStart

log = structlog.get_logger(component="CONTROL")

_SHORTEST_MEASURE = 0.5
_REPORTED = 10_000
"""Most ended connections in one message."""


class WorkerRuntime:
    """One worker: what it shares, and its handling of its parent's messages (docs/workers.md).

    Args:
        start: the worker's start parameters.
        channel: the message channel to the parent.
        handoff_socket: the socket on which connections arrive.
    """

    def __init__(self, start: WorkerStart, channel: Channel, handoff_socket: socket.socket) -> None:
        self.start = start
        self.peers = Peers(start.number, start.mark, start.count, start.folder, channel.send)
        self._channel = channel
        self._handoff_socket = handoff_socket
        self._ended: deque[int] = deque()
        self._busy = _Busy()

    async def serve(self, node: Node, listener: Listener, feed: FeedPort | None) -> None:
        """Serve connections until the parent sends "end" or is gone.

        Args:
            node: the state that commands work with.
            listener: serves driver connections.
            feed: serves feed connections.
        """
        node.port = self.start.ports["port"]
        address = private_address(self.start.folder, self.start.number)
        if os.path.exists(address):  # noqa: ASYNC240 (left by a worker that has died)
            os.unlink(address)
        async with Listener(node, for_workers=True) as private, OwnedTasks() as adopting:
            await private.listen_privately(address)

            def take(handed: HandedConnection) -> None:
                adopting.run(self._adopt, handed, listener, feed)

            arrivals = Arrivals(self._handoff_socket, take)
            try:
                self._channel.send(ready=True)
                await self._handle_messages(node, listener, arrivals)
            finally:
                arrivals.close()
                self.peers.close()

    async def _handle_messages(self, node: Node, listener: Listener, arrivals: Arrivals) -> None:
        while True:
            message = await self._channel.receive()
            match message:
                case {"load": _}:
                    ended = [self._ended.popleft() for _ in range(min(len(self._ended), _REPORTED))]
                    self._channel.send(load=self._load(node), ended=ended)
                case {"identity": identity, "counter": counter}:
                    node.identity = ServerIdentity(**identity)
                    node.topology.move_to(counter)
                case {"upstream": choice}:
                    if isinstance(node.upstream, UpstreamMongos):
                        node.upstream.follow(**choice)
                case {"rotate": _}:
                    if node.certificates is not None:
                        node.certificates.rotate()
                case {"drain": seconds}:
                    arrivals.close()
                    await listener.drain(seconds)
                    self._channel.send(drained=True)
                case {"end": _}:
                    return
                case None:
                    log.error("The parent is gone; ending")
                    shutil.rmtree(self.start.folder, ignore_errors=True)
                    return

    def _load(self, node: Node) -> dict[str, Any]:
        """Return the fields of ``Load``."""
        return {
            "streams": len(node.cursors),
            "connections": node.counters.connections,
            "busy": self._busy.share(),
        }

    async def _adopt(
        self, handed: HandedConnection, listener: Listener, feed: FeedPort | None
    ) -> None:
        def ended() -> None:
            self._ended.append(handed.connection_id)

        try:
            if handed.port == DRIVER:
                await listener.adopt(handed.connection, handed.connection_id, ended)
            elif feed is not None:
                await feed.adopt(handed.connection)
        except OSError as error:  # the client has disconnected
            log.info(
                "A connection was lost while it was handed over",
                component="NETWORK",
                error=str(error),
            )
            ended()


class _Busy:
    """The share of a core that this process used over at least the last half second."""

    def __init__(self) -> None:
        self._share = 0.0
        self._at = asyncio.get_running_loop().time()
        self._used = time.process_time()

    def share(self) -> float:
        at, used = asyncio.get_running_loop().time(), time.process_time()
        if at - self._at >= _SHORTEST_MEASURE:
            self._share = min(1.0, (used - self._used) / (at - self._at))
            self._at, self._used = at, used
        return self._share


_CHANNEL, _HANDOFF_SOCKET = 1, 2


def main() -> None:
    """Run one worker until its parent ends it."""
    # A terminal or service manager signals the whole process group; only the parent reacts.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    start: WorkerStart = pickle.load(sys.stdin.buffer)  # noqa: S301 (our own parent wrote it)
    configure_logging(start.verbosity, quiet=start.settings.system_log.quiet)
    structlog.contextvars.bind_contextvars(ctx=f"worker{start.number}")
    keep_freed_memory()
    collect_less_often()
    channel, handoff_socket = (
        socket.socket(fileno=int(sys.argv[each])) for each in (_CHANNEL, _HANDOFF_SOCKET)
    )
    uvloop.run(_run(start, channel, handoff_socket))


async def _run(
    start: WorkerStart,
    channel_end: socket.socket,
    handoff_socket: socket.socket,
) -> None:
    channel = await Channel.over(channel_end)
    try:
        runtime = WorkerRuntime(start, channel, handoff_socket)
        topology = TopologyVersion(start.process_id)
        async with assemble(
            start.settings,
            start.arguments,
            peers=runtime.peers,
            topology=topology,
            started=start.started,
        ) as parts:
            await runtime.serve(*parts)
    finally:
        channel.close()


if __name__ == "__main__":
    main()
