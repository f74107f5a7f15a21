"""A worker process: ``python -m router.workers.worker CHANNEL``, started by the parent.

The argument is the descriptor of the worker's end of its channel. It reads its other parameters, a
``WorkerStart``, from standard input.
"""

import asyncio
import errno
import os
import pickle
import shutil
import signal
import socket
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import structlog
import uvloop

from router.allocator import collect_less_often, keep_freed_memory
from router.assembly import Parts, process_parts
from router.commands.serving_process import ServerDescription
from router.commands.topology_version import TopologyVersion
from router.config.log_lines import configure_logging
from router.feed.feed import FeedPort
from router.peers import messages
from router.peers.peers import Peers, private_address
from router.server.listener import Listener
from router.tasks import OwnedTasks
from router.upstream.upstream_mongos import UpstreamMongos
from router.workers.channel import Channel
from router.workers.child import WorkerStart

log = structlog.get_logger(component="CONTROL")

_SHORTEST_MEASURE = 0.5


async def _handle_messages(folder: Path, channel: Channel, parts: Parts, tasks: OwnedTasks) -> None:
    """Do what the parent asks for until it sends ``END`` or is gone (docs/workers.md).

    ``folder`` is the router's private folder; ``tasks`` connect the clients that are handed over.
    """
    process, listener, feed = parts
    busy = _Busy()
    channel.send(messages.WorkerSignal.READY)
    while (received := await channel.receive()) is not None:
        message, connection = received
        match message:
            case messages.ServeClient(port, connection_id):
                adopts = listener if port == "driver" else feed
                tasks.run(_adopt, channel, connection, connection_id, adopts)
            case messages.WorkerSignal.REPORT_LOAD:
                counters = process.counters
                channel.send(
                    messages.Load(len(process.cursors), counters.connections, busy.share())
                )
            case messages.ShowIdentity(identity, counter):
                process.server.identity = identity
                process.server.topology.move_to(counter)
            case messages.UseUpstream(chosen, generation):
                if isinstance(process.upstream, UpstreamMongos):
                    process.upstream.follow(chosen, generation)
            case messages.WorkerSignal.ROTATE_CERTIFICATES:
                if process.certificates is not None:
                    process.certificates.rotate()
            case messages.Drain(seconds):
                tasks.run(_drain, channel, listener, seconds)
            case messages.WorkerSignal.END:
                return
    log.error("The parent is gone; ending")
    shutil.rmtree(folder, ignore_errors=True)


async def _drain(channel: Channel, listener: Listener, seconds: float) -> None:
    await listener.drain(seconds)
    channel.send(messages.WorkerSignal.DRAINED)


async def _adopt(
    channel: Channel,
    connection: socket.socket | None,
    connection_id: int,
    port: Listener | FeedPort | None,
) -> None:
    """Serve a connection that the parent has handed over, unless it could not be opened."""

    def ended() -> None:
        channel.send(messages.ConnectionEnded(connection_id))

    try:
        if connection is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if isinstance(port, Listener):
            await port.adopt(connection, connection_id, ended)
        elif port is not None:
            await port.adopt(connection)
    except OSError as error:  # the client has disconnected
        log.info(
            "A connection was lost while it was handed over", component="NETWORK", error=str(error)
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
    uvloop.run(_run(start, int(sys.argv[1])))


async def _run(start: WorkerStart, channel_end: int) -> None:
    with closing(Channel(socket.socket(fileno=channel_end))) as channel:
        count = start.settings.workers
        peers = Peers(start.number, start.mark, count, start.folder, channel.send)
        parts = process_parts(
            start.settings,
            start.arguments,
            peers=peers,
            server=ServerDescription(
                port=start.port, started=start.started, topology=TopologyVersion(start.process_id)
            ),
        )
        async with parts as (process, listener, feed), OwnedTasks() as tasks:
            address = private_address(start.folder, start.number)
            with suppress(FileNotFoundError):  # one that has died leaves it
                os.unlink(address)
            async with Listener(process, for_workers=True) as private:
                await private.listen_privately(address)
                with closing(peers):
                    await _handle_messages(start.folder, channel, (process, listener, feed), tasks)


if __name__ == "__main__":
    main()
