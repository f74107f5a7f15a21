"""The router as a process: its parts put together, started, drained and ended."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import structlog

from router.catalog.cluster import CONFIG, Cluster, ReplicaSetFactory
from router.commands.fail_points import FailPoints
from router.commands.node import Node
from router.commands.server_identity import ServerIdentity
from router.config.parameters import stream_limits
from router.config.settings import Settings
from router.cursors.registry import CursorRegistry
from router.feed.feed import Feed
from router.server.listener import Listener
from router.upstream_mongos import UpstreamMongos, parse_upstream
from shard_client.errors import CommandError, NetworkError, ProtocolError

log = structlog.get_logger()

_IDENTITY_WAIT = 3.0
_RETRY_PAUSE = 1.0
_ASK_TIMEOUT = 5.0
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
    if settings.sharding.config_db is None:
        raise ValueError("error: no args for --configdb")
    parameters = settings.parameters
    limits = stream_limits(parameters)
    async with AsyncExitStack() as owned:
        cluster = Cluster(settings.sharding.config_db, limits, replica_set=replica_set)
        owned.push_async_callback(cluster.close)
        cursors = CursorRegistry(cluster, limits)
        owned.push_async_callback(cursors.close)
        node = Node(
            clock=cluster.clock,
            cursors=cursors,
            cluster=cluster,
            upstream=_upstream(settings),
            arguments=list(arguments),
            options=settings.given(),
            parameters=parameters,
            host=socket.gethostname(),
            now=now,
            started=now(),
            fail_points=FailPoints() if parameters["enableTestCommands"] else None,
            max_connections=settings.net.max_incoming_connections,
            compressors=settings.net.compressors,
        )
        learning = asyncio.create_task(learn_identity(node))
        owned.push_async_callback(_end, learning)
        listener = await owned.enter_async_context(Listener(node))
        await asyncio.wait((learning,), timeout=_IDENTITY_WAIT)
        attributes: dict[str, object] = {
            "port": await listener.listen(settings.net.hosts, settings.net.port)
        }
        if settings.feed.port is not None:
            feed = await owned.enter_async_context(
                Feed(
                    cursors,
                    request_wait=settings.feed.request_wait_ms * _MS,
                    default=settings.feed.watch,
                )
            )
            hosts = [settings.feed.bind_ip]
            attributes["feedPort"] = await feed.listen(hosts, settings.feed.port)
        log.info("Waiting for connections", component="NETWORK", **attributes)
        await stop.wait()
        drain_time = parameters["mongosShutdownTimeoutMillisForSignaledShutdown"] * _MS
        log.info("Shutting down", component="CONTROL", drainSeconds=drain_time)
        await listener.drain(drain_time)
    log.info("Shut down", component="CONTROL")


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


def _upstream(settings: Settings) -> UpstreamMongos | None:
    if settings.upstream is None:
        return None
    return UpstreamMongos(parse_upstream(settings.upstream))


async def learn_identity(node: Node) -> None:
    """Ask a server of the cluster for its version, which drivers see as the router's.

    Tries until one answers; then waiting hellos are answered with what is new.
    """
    while True:
        try:
            identity = await _ask(node.cluster)
        except (CommandError, NetworkError, ProtocolError) as error:
            log.warning(
                "No server of the cluster answers; trying on",
                component="SHARDING",
                error=str(error),
            )
            await asyncio.sleep(_RETRY_PAUSE)
        else:
            changed = identity != node.identity
            node.identity = identity
            if changed:
                node.topology.advance()
            log.info("Speaking for a cluster", component="SHARDING", version=identity.version)
            return


async def _ask(cluster: Cluster) -> ServerIdentity:
    shards, _read_at = await cluster.shards()
    target = next(iter(shards), CONFIG)
    connection = await cluster.connect(target, shards.get(target))
    try:
        build_info = await connection.command("admin", {"buildInfo": 1}, timeout=_ASK_TIMEOUT)
        return ServerIdentity.of_server(connection.hello, build_info)
    finally:
        await connection.close()


async def run_until_signalled(settings: Settings) -> None:
    """Run ``serve`` until SIGTERM or SIGINT; a second one ends the process at once."""
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
    await serve(settings, sys.argv, stop)
