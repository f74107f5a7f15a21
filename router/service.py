"""The router as a process: assembly of its parts, start, drain and end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from router.access.control import AccessControl
from router.access.users import User
from router.admin.server import AdminServer, admin_handshakes
from router.admin.sources import OwnStatus
from router.catalog.cluster import Cluster, ReplicaSetFactory
from router.catalog.replica_set_checks import ReplicaSetChecks
from router.cluster_version import ClusterVersion
from router.commands.cursors import lost_rights
from router.commands.fail_point import FailPoints
from router.commands.node import Node
from router.commands.server_identity import ServerIdentity
from router.commands.topology_version import TopologyVersion
from router.config.parameters import stream_limits
from router.config.security import Logins
from router.config.settings import Settings
from router.config.worker_budgets import settings_of_worker
from router.cursors.registry import CursorRegistry
from router.feed.feed import Feed
from router.lookup.connections import Connect
from router.loop_lag import LoopLag
from router.peers.cursor_ids import CursorIds
from router.peers.peers import Peers
from router.server.listener import Listener
from router.stream_settings import StreamSettings
from router.tls.certificates import Certificates
from router.tls.handshake import Handshakes
from router.tracing import SpanExport
from router.upstream_mongos import UpstreamMongos, parse_upstream
from shard_client.wire.access import Access
from shard_client.wire.tls import TlsContexts

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
    rotate: asyncio.Event | None = None,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = _now,
    limits_of: Callable[[Mapping[str, Any]], StreamSettings] = stream_limits,
) -> None:
    """Run the router until ``stop`` is set, then drain it and end all its parts.

    Args:
        settings: the operator's settings; ``sharding.configDB`` is required.
        arguments: the command line, for getCmdLineOpts.
        stop: the event that ends the router.
        rotate: the event that requests an exchange of the certificates; cleared here.
        replica_set: creates the monitor of a replica set, as for ``Cluster``.
        now: the wall clock.
        limits_of: returns the settings of streams for the server parameters.

    Raises:
        ValueError: if no config server is set, or a file with a secret or certificate is invalid.
        OSError: if a port cannot be opened, or such a file not be read.
    """
    admin = settings.net.admin
    token = admin.read_token()
    async with AsyncExitStack() as owned:
        parts = assemble(settings, arguments, replica_set=replica_set, now=now, limits_of=limits_of)
        node, listener, feed = await owned.enter_async_context(parts)
        attributes: dict[str, object] = {
            "port": await listener.listen(settings.net.hosts, settings.net.port)
        }
        if admin.port is not None:
            handshakes = admin_handshakes(settings.net, node.certificates)
            server = await owned.enter_async_context(
                AdminServer(OwnStatus(node), token, handshakes=handshakes)
            )
            attributes["adminPort"] = await server.listen(admin.hosts, admin.port)
        if feed is not None and settings.feed.port is not None:
            hosts = [settings.feed.bind_ip]
            attributes["feedPort"] = await feed.listen(hosts, settings.feed.port)
        log.info("Waiting for connections", component="NETWORK", **attributes)
        if rotate is not None and node.certificates is not None:
            rotating = asyncio.create_task(_rotate(node.certificates, rotate))
            owned.push_async_callback(_end, rotating)
        await stop.wait()
        drain_time = node.parameters["mongosShutdownTimeoutMillisForSignaledShutdown"] * _MS
        log.info("Shutting down", component="CONTROL", drainSeconds=drain_time)
        await listener.drain(drain_time)
    log.info("Shut down", component="CONTROL")


class WorkerShare(Protocol):
    """The state that a worker shares with the other workers of its router (docs/workers.md)."""

    @property
    def number(self) -> int:
        """The worker's number, from 1."""

    @property
    def count(self) -> int:
        """The number of workers."""

    @property
    def started(self) -> datetime:
        """The time at which the router was started."""

    @property
    def cursor_ids(self) -> CursorIds:
        """Creates cursor ids that identify the worker that owns the cursor."""

    @property
    def topology(self) -> TopologyVersion:
        """The topology version in the hello replies of all workers."""

    @property
    def peers(self) -> Peers:
        """The other workers."""

    def announce(self, identity: ServerIdentity) -> None:
        """Send all workers the identity, with the version, that the router reports."""

    def announce_upstream(self, upstream: UpstreamMongos) -> None:
        """Send all workers the upstream mongos to which this worker has moved."""


class Parts(NamedTuple):
    """The parts of one process that answer clients."""

    node: Node
    listener: Listener
    feed: Feed | None


@asynccontextmanager
async def assemble(
    settings: Settings,
    arguments: Sequence[str],
    *,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = _now,
    limits_of: Callable[[Mapping[str, Any]], StreamSettings] = stream_limits,
    worker: WorkerShare | None = None,
) -> AsyncIterator[Parts]:
    """Assemble a process's parts, none of them listening yet; end them after the block.

    Args:
        settings: the operator's settings.
        arguments: the command line, for getCmdLineOpts.
        replica_set: creates the monitor of a replica set, as for ``Cluster``.
        now: the wall clock.
        limits_of: returns the settings of streams for the server parameters.
        worker: the shared state, if the process is one of several workers.

    Raises:
        ValueError: if no config server is set.
    """
    parameters = settings.parameters
    threshold = settings.replication.local_threshold
    limits = replace(limits_of(parameters), local_threshold=threshold)
    if worker is not None:
        limits = settings_of_worker(limits, worker.count)
    limits_of_clients = settings.client_limits
    logins = settings.security.logins()
    certificates = Certificates(settings.net.tls) if settings.net.tls.enabled else None
    tls = None if certificates is None else certificates.towards_cluster
    async with AsyncExitStack() as owned:
        if settings.tracing.endpoint is not None:
            exported = SpanExport(settings.tracing, 0 if worker is None else worker.number)
            owned.push_async_callback(exported.close)
        cluster = cluster_of(settings, limits, tls=tls, replica_set=replica_set, now=now)
        owned.push_async_callback(cluster.close)
        if certificates is not None and tls is not None:
            certificates.when_rotated(cluster.renew_monitors)
        upstream = _upstream(settings, worker, Access(logins.upstream, tls))
        access = None
        if settings.security.authorization:
            refresh = parameters["userCacheInvalidationIntervalSecs"]
            access = AccessControl(cluster, limits_of_clients, refresh=refresh)
            owned.push_async_callback(access.close)
        cursors = CursorRegistry(
            cluster,
            limits,
            new_id=worker.cursor_ids.new_id if worker is not None else None,
            mongos=_lookups(upstream, logins, access),
            sent_time=None if access is None else access.times.newest_raw,
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
            started=worker.started if worker is not None else now(),
            topology=worker.topology if worker is not None else TopologyVersion(),
            peers=worker.peers if worker is not None else None,
            fail_points=FailPoints() if parameters["enableTestCommands"] else None,
            client_limits=limits_of_clients,
            compressors=settings.net.compressors,
            access=access,
            certificates=certificates,
        )
        if access is not None:
            access.users.when_changed(partial(_end_streams, node))
        learnt = worker.announce if worker is not None else node.become
        known = asyncio.Event()
        version = ClusterVersion(cluster, node.upstream, learnt)
        # Worker 1 keeps the version current; the parent passes it to the other workers.
        keep = worker is None or worker.number == 1
        learning = asyncio.create_task(_learn(version, known, keep=keep))
        owned.push_async_callback(_end, learning)
        if settings.net.admin.port is not None:
            node.checks, node.lag = ReplicaSetChecks(cluster), LoopLag()
            owned.push_async_callback(node.checks.close)
            owned.callback(node.lag.stop)
            node.lag.start()
        handshakes = None
        if certificates is not None:
            contexts = certificates.contexts
            handshakes = Handshakes(
                lambda: contexts.incoming,
                required=settings.net.tls.required,
                timeout=node.client_limits.login_time,
            )
        listener = await owned.enter_async_context(Listener(node, handshakes=handshakes))
        feed = None
        if settings.feed.port is not None:
            request_wait = settings.feed.request_wait_ms * _MS
            feed = await owned.enter_async_context(
                Feed(
                    cursors,
                    request_wait=request_wait,
                    default=settings.feed.watch,
                    access=access,
                    limits=limits_of_clients,
                    users=node.users,
                    handshakes=handshakes,
                    certificates=certificates,
                )
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDENTITY_WAIT):
                await known.wait()
        yield Parts(node, listener, feed)


def cluster_of(
    settings: Settings,
    limits: StreamSettings,
    *,
    tls: TlsContexts | None = None,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = _now,
) -> Cluster:
    """Return the cluster that the settings name; ``await close()`` it.

    Args:
        settings: the operator's settings.
        limits: the limits of streams, of which some apply to connections.
        tls: the TLS contexts of connections; None for connections without TLS.
        replica_set: creates the monitor of a replica set, as for ``Cluster``.
        now: the wall clock.

    Raises:
        ValueError: if no config server is set, or a file with a secret is invalid.
        OSError: if a file with a secret cannot be read.
    """
    if settings.sharding.config_db is None:
        raise ValueError("sharding.configDB is not set: no config server to ask")
    return Cluster(
        settings.sharding.config_db,
        limits,
        replica_set=replica_set,
        wall=lambda: now().timestamp(),
        access=Access(settings.security.logins().members, tls),
    )


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def _rotate(certificates: Certificates, asked: asyncio.Event) -> None:
    """Exchange the certificates each time ``asked`` is set."""
    while True:
        await asked.wait()
        asked.clear()
        with suppress(ValueError, OSError):  # it has been logged
            certificates.rotate()


def _lookups(
    upstream: UpstreamMongos | None, logins: Logins, access: AccessControl | None
) -> Connect | None:
    """Return the function that connects for lookups; None if the mongos would refuse the router."""
    if upstream is None or (access is not None and logins.upstream is None):
        return None
    return upstream.connect_as_router


def _end_streams(node: Node, user: User) -> None:
    """End the streams that the user may no longer read."""
    node.cursors.revoke(
        lambda cursor: lost_rights(node, cursor) if node.users.get(cursor) is user else None
    )


def _upstream(
    settings: Settings, worker: WorkerShare | None, access: Access
) -> UpstreamMongos | None:
    if settings.upstream is None:
        return None
    moved = worker.announce_upstream if worker is not None else None
    return UpstreamMongos(parse_upstream(settings.upstream), moved=moved, access=access)


async def _learn(version: ClusterVersion, first: asyncio.Event, *, keep: bool) -> None:
    await version.learn()
    first.set()
    if keep:
        await version.keep_learning()
