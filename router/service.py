"""The router as a process: its parts put together, started, drained and ended."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from router.catalog.cluster import Cluster, ReplicaSetFactory
from router.cluster_version import ClusterVersion
from router.commands.fail_points import FailPoints
from router.commands.node import Node
from router.commands.topology_version import TopologyVersion
from router.config.parameters import stream_limits
from router.config.settings import Settings
from router.cursors.registry import CursorRegistry
from router.feed.feed import Feed
from router.server.listener import Listener
from router.upstream_mongos import UpstreamMongos, parse_upstream
from router.workers.budgets import settings_of_worker
from router.workers.runtime import WorkerRuntime
from router.workers.supervisor import Supervisor

log = structlog.get_logger()

_IDENTITY_WAIT = 3.0
_MS = 0.001


def _now() -> datetime:
    return datetime.now(UTC)


async def serve(
    settings: Settings,
    arguments: Sequence[str],
    stop: asyncio.Event,
    *,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = _now,
) -> None:
    """Run the router until ``stop`` is set, then drain it and end all that it owns.

    Args:
        settings: what the operator decided; ``sharding.configDB`` must be there.
        arguments: the command line, for getCmdLineOpts.
        stop: set to end.
        replica_set: what monitors a replica set, as for ``Cluster``.
        now: the wall clock.

    Raises:
        ValueError: there is no config server to ask.
        OSError: a port cannot be opened.
    """
    async with _parts(settings, arguments, replica_set=replica_set, now=now) as parts:
        node, listener, feed = parts
        attributes: dict[str, object] = {
            "port": await listener.listen(settings.net.hosts, settings.net.port)
        }
        if feed is not None and settings.feed.port is not None:
            hosts = [settings.feed.bind_ip]
            attributes["feedPort"] = await feed.listen(hosts, settings.feed.port)
        log.info("Waiting for connections", component="NETWORK", **attributes)
        await stop.wait()
        drain_time = node.parameters["mongosShutdownTimeoutMillisForSignaledShutdown"] * _MS
        log.info("Shutting down", component="CONTROL", drainSeconds=drain_time)
        await listener.drain(drain_time)
    log.info("Shut down", component="CONTROL")


async def serve_as_worker(
    settings: Settings, arguments: Sequence[str], place: WorkerRuntime
) -> None:
    """Run one of several workers until its parent ends it (docs/workers.md).

    Args:
        settings: what the operator decided.
        arguments: the router's command line, for getCmdLineOpts.
        place: the worker's place among the others.

    Raises:
        ValueError: there is no config server to ask.
    """
    async with _parts(settings, arguments, place=place) as parts:
        await place.serve(*parts)


class _Parts(NamedTuple):
    node: Node
    listener: Listener
    feed: Feed | None


@asynccontextmanager
async def _parts(
    settings: Settings,
    arguments: Sequence[str],
    *,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = _now,
    place: WorkerRuntime | None = None,
) -> AsyncIterator[_Parts]:
    """Put a process's parts together, none of them listening yet; end them after the block."""
    if settings.sharding.config_db is None:
        raise ValueError("sharding.configDB is not set: no config server to ask")
    parameters = settings.parameters
    limits = stream_limits(parameters)
    if place is not None:
        limits = settings_of_worker(limits, place.start.count)
    async with AsyncExitStack() as owned:
        cluster = Cluster(
            settings.sharding.config_db,
            limits,
            replica_set=replica_set,
            wall=lambda: now().timestamp(),
        )
        owned.push_async_callback(cluster.close)
        upstream = _upstream(settings, place)
        cursors = CursorRegistry(
            cluster,
            limits,
            new_id=place.cursor_ids.new_id if place is not None else None,
            mongos=None if upstream is None else upstream.connect,
        )
        owned.push_async_callback(cursors.close)
        node = Node(
            clock=cluster.clock,
            cursors=cursors,
            cluster=cluster,
            upstream=upstream,
            arguments=list(arguments),
            options=settings.given(),
            parameters=parameters,
            host=socket.gethostname(),
            now=now,
            started=place.start.started if place is not None else now(),
            topology=place.topology if place is not None else TopologyVersion(),
            peers=place.peers if place is not None else None,
            fail_points=FailPoints() if parameters["enableTestCommands"] else None,
            max_connections=settings.net.max_incoming_connections,
            compressors=settings.net.compressors,
        )
        learnt = place.announce if place is not None else node.become
        known = asyncio.Event()
        version = ClusterVersion(cluster, node.upstream, learnt)
        # The parent shares what one worker learns.
        keep = place is None or place.start.number == 1
        learning = asyncio.create_task(_learn(version, known, keep=keep))
        owned.push_async_callback(_end, learning)
        listener = await owned.enter_async_context(Listener(node))
        feed = None
        if settings.feed.port is not None:
            request_wait = settings.feed.request_wait_ms * _MS
            feed = await owned.enter_async_context(
                Feed(cursors, request_wait=request_wait, default=settings.feed.watch)
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDENTITY_WAIT):
                await known.wait()
        yield _Parts(node, listener, feed)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


def _upstream(settings: Settings, place: WorkerRuntime | None) -> UpstreamMongos | None:
    if settings.upstream is None:
        return None
    moved = place.announce_upstream if place is not None else None
    return UpstreamMongos(parse_upstream(settings.upstream), moved=moved)


async def _learn(version: ClusterVersion, first: asyncio.Event, *, keep: bool) -> None:
    await version.learn()
    first.set()
    if keep:
        await version.keep_learning()


async def run_until_signalled(settings: Settings) -> None:
    """Run the router until SIGTERM or SIGINT; a second one ends it at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def signalled(number: int) -> None:
        log.info("Got signal", component="CONTROL", signal=signal.Signals(number).name)
        if stop.is_set():
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number)
    if settings.workers == 1:
        await serve(settings, sys.argv, stop)
    else:
        await Supervisor(settings, sys.argv).run(stop)
