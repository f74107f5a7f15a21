"""The router as a process: assembly of its parts, start, drain and end."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import structlog

from router.access.login import AccessControl
from router.admin.server import AdminServer, admin_handshakes
from router.admin.sources import collect_own
from router.catalog.cluster import Cluster, ReplicaSetFactory
from router.catalog.server_checks import Check, ServerChecks
from router.catalog.upstream import CatalogPrimary, UpstreamMongos, parse_upstream
from router.catalog.version import ClusterVersion, ServerIdentity
from router.client_limits import FOR_FEEDS, supported_connections
from router.commands.call import Node
from router.commands.topology_version import TopologyVersion
from router.config.parameters import settings_of_streams
from router.config.security import Logins
from router.config.settings import Settings
from router.config.tracing import SpanExport
from router.cursors.registry import CursorRegistry
from router.feed.feed import MOST_CLIENTS, FeedPort
from router.lookup.upstream_reads import Lend
from router.loop_lag import BOUNDS, measure_lag
from router.memory import keep_slack_small
from router.owned_tasks import OwnedTasks
from router.peers.peers import Peers
from router.server.listener import Listener
from router.status_sums import Histogram
from router.stream_settings import StreamSettings, settings_of_process
from router.tls.certificates import Certificates
from router.tls.handshake import Handshakes
from shard_client.wire.authentication import Access
from shard_client.wire.tls import TlsContexts

log = structlog.get_logger()

_IDENTITY_WAIT = 3.0
_MS = 0.001


def _now() -> datetime:
    return datetime.now(UTC)


async def serve_process(
    settings: Settings,
    arguments: Sequence[str],
    stop: asyncio.Event,
    *,
    rotate: asyncio.Event | None = None,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = _now,
    settings_of: Callable[[Mapping[str, Any]], StreamSettings] = settings_of_streams,
) -> None:
    """Run the router until ``stop`` is set, then drain it and end all its parts.

    Args:
        settings: the operator's settings, with a config server or a replica set.
        arguments: the command line, for getCmdLineOpts.
        stop: the event that ends the router.
        rotate: the event that requests an exchange of the certificates; cleared here.
        replica_set: creates the monitor of a replica set, as for ``Cluster``.
        now: the wall clock.
        settings_of: returns the settings of streams for the server parameters.

    Raises:
        ValueError: if neither a config server nor a replica set is set, or a file with a secret or
            certificate is invalid.
        OSError: if a port cannot be opened, or such a file not be read.
    """
    admin = settings.net.admin
    token = admin.read_token()
    async with AsyncExitStack() as owned:
        parts = assemble(
            settings, arguments, replica_set=replica_set, now=now, settings_of=settings_of
        )
        node, listener, feed = await owned.enter_async_context(parts)
        attributes: dict[str, object] = {
            "port": await listener.listen(settings.net.hosts, settings.net.port)
        }
        if admin.port is not None:
            handshakes = admin_handshakes(settings.net, node.certificates)
            server = await owned.enter_async_context(
                AdminServer(partial(collect_own, node), token, handshakes=handshakes)
            )
            attributes["adminPort"] = await server.listen(admin.hosts, admin.port)
        if feed is not None and settings.feed.port is not None:
            hosts = [settings.feed.bind_ip]
            attributes["feedPort"] = await feed.listen(hosts, settings.feed.port)
        log.info("Waiting for connections", component="NETWORK", **attributes)
        if rotate is not None and node.certificates is not None:
            tasks = await owned.enter_async_context(OwnedTasks())
            tasks.run(_rotate, node.certificates, rotate)
        await stop.wait()
        drain_time = node.parameters["mongosShutdownTimeoutMillisForSignaledShutdown"] * _MS
        log.info("Shutting down", component="CONTROL", drainSeconds=drain_time)
        await listener.drain(drain_time)
    log.info("Shut down", component="CONTROL")


@dataclass(frozen=True, slots=True)
class Share:
    """A process's share of its router; by default it is the only process (docs/workers.md).

    Args:
        number: the process's number, from 1; 0 if it is the only one.
        count: the number of processes, among which the router's bounds are divided.
        started: the time at which the router was started; None for now.
        topology: the topology version in the hello replies of all processes.
        peers: the other processes.
        announce: makes all processes report an identity, with its version.
        announce_upstream: makes all processes use the upstream mongos that this one has moved to.
    """

    number: int = 0
    count: int = 1
    started: datetime | None = None
    topology: TopologyVersion = field(default_factory=TopologyVersion)
    peers: Peers | None = None
    announce: Callable[[ServerIdentity], None] | None = None
    announce_upstream: Callable[[UpstreamMongos], None] | None = None


class ServiceParts(NamedTuple):
    """The parts of one process that answer clients."""

    node: Node
    listener: Listener
    feed: FeedPort | None


@asynccontextmanager
async def assemble(
    settings: Settings,
    arguments: Sequence[str],
    *,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = _now,
    settings_of: Callable[[Mapping[str, Any]], StreamSettings] = settings_of_streams,
    share: Share | None = None,
) -> AsyncIterator[ServiceParts]:
    """Assemble a process's parts, none of them listening yet; end them after the block.

    Args:
        settings: the operator's settings.
        arguments: the command line, for getCmdLineOpts.
        replica_set: creates the monitor of a replica set, as for ``Cluster``.
        now: the wall clock.
        settings_of: returns the settings of streams for the server parameters.
        share: the process's share of its router; None if it is the only process.

    Raises:
        ValueError: if neither a config server nor a replica set is set.
    """
    parameters = settings.parameters
    threshold = settings.replication.local_threshold
    share = share or Share()
    of_streams = replace(settings_of(parameters), local_threshold=threshold)
    of_streams = settings_of_process(of_streams, share.count)
    limits_of_clients = settings.client_limits
    logins = settings.security.logins()
    certificates = Certificates(settings.net.tls) if settings.net.tls.enabled else None
    tls = None if certificates is None else certificates.towards_cluster
    async with AsyncExitStack() as owned:
        if settings.tracing.endpoint is not None:
            exported = SpanExport(settings.tracing, share.number)
            owned.push_async_callback(exported.close)
        cluster = _cluster(settings, of_streams, tls=tls, replica_set=replica_set, now=now)
        owned.push_async_callback(cluster.close)
        if certificates is not None and tls is not None:
            certificates.when_rotated(cluster.renew_monitors)
        mongos = _mongos(settings, share, Access(logins.upstream, tls))
        if mongos is not None:
            owned.callback(mongos.close)
        upstream = mongos if cluster.sharded else CatalogPrimary(cluster)
        access = None
        if settings.security.authorization:
            refresh = parameters["userCacheInvalidationIntervalSecs"]
            access = AccessControl(cluster, limits_of_clients, certificates, refresh=refresh)
            owned.push_async_callback(access.close)
        cursors = CursorRegistry(
            cluster,
            of_streams,
            new_id=None if share.peers is None else share.peers.new_cursor_id,
            mongos=_lookups(upstream, logins, access),
            sent_time=None if access is None else access.times.newest_raw,
        )
        owned.push_async_callback(cursors.close)
        tasks = await owned.enter_async_context(OwnedTasks())
        tasks.run(keep_slack_small, cursors.memory, name="give back freed memory")
        fail_points = None
        if parameters["enableTestCommands"]:
            from router.commands.fail_points import FailPoints  # no other router loads them

            fail_points = FailPoints()
        checks = lag = None
        if settings.net.admin.port is not None:
            checks, lag = ServerChecks(cluster, mongos), Histogram(BOUNDS)
            owned.push_async_callback(checks.close)
            tasks.run(measure_lag, lag)
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
            started=share.started or now(),
            topology=share.topology,
            peers=share.peers,
            fail_points=fail_points,
            client_limits=limits_of_clients,
            compressors=settings.net.compressors,
            checks=checks,
            lag=lag,
            access=access,
            certificates=certificates,
        )
        if access is not None:
            access.users.when_changed(cursors.revoke)
        known = asyncio.Event()
        version = ClusterVersion(cluster, mongos, share.announce or node.become)
        # The first process keeps the version current for all.
        tasks.run(_read_version, version, known, share.number <= 1)
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
                FeedPort(
                    cursors,
                    request_wait=request_wait,
                    default=settings.feed.watch,
                    most=supported_connections(MOST_CLIENTS, part=FOR_FEEDS),
                    access=access,
                    limits=limits_of_clients,
                    handshakes=handshakes,
                )
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDENTITY_WAIT):
                await known.wait()
        yield ServiceParts(node, listener, feed)


async def check_servers(settings: Settings) -> Sequence[Check]:
    """Check the servers that the settings name, once.

    Raises:
        ValueError: if neither a config server nor a replica set is set, or a file with a secret or
            certificate is invalid.
        OSError: if such a file cannot be read.
    """
    of_streams = settings_of_streams(settings.parameters)
    of_streams = replace(of_streams, open_timeout=of_streams.connect_timeout)
    net = settings.net.tls
    tls = TlsContexts(net.files()) if net.enabled and net.towards_cluster else None
    cluster = _cluster(settings, of_streams, tls=tls)
    mongos = _mongos(settings, Share(), Access(settings.security.logins().upstream, tls))
    checks = ServerChecks(cluster, mongos)
    try:
        return await checks.results(whole=True)
    finally:
        await checks.close()
        await cluster.close()


def _cluster(
    settings: Settings,
    of_streams: StreamSettings,
    *,
    tls: TlsContexts | None = None,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = _now,
) -> Cluster:
    """Return the cluster that the settings name; ``await close()`` it.

    Raises:
        ValueError: if neither a config server nor a replica set is set, or a file with a secret is
            invalid.
        OSError: if a file with a secret cannot be read.
    """
    if settings.seeds is None:
        raise ValueError(
            "sharding.configDB is not set: name the config server there, or a replica set in "
            "replication.replicaSet"
        )
    return Cluster(
        settings.seeds,
        of_streams,
        sharded=settings.sharded,
        replica_set=replica_set,
        wall=lambda: now().timestamp(),
        access=Access(settings.security.logins().members, tls),
    )


async def _rotate(certificates: Certificates, asked: asyncio.Event) -> None:
    """Exchange the certificates each time ``asked`` is set."""
    while True:
        await asked.wait()
        asked.clear()
        with suppress(ValueError, OSError):  # it has been logged
            certificates.rotate()


def _lookups(
    upstream: UpstreamMongos | CatalogPrimary | None, logins: Logins, access: AccessControl | None
) -> Lend | None:
    """Return what lends connections for lookups; None if the mongos would refuse the router."""
    if upstream is None:
        return None
    if isinstance(upstream, UpstreamMongos) and access is not None and logins.upstream is None:
        return None
    return upstream.lend


def _mongos(settings: Settings, share: Share, access: Access) -> UpstreamMongos | None:
    if settings.upstream is None:
        return None
    addresses = parse_upstream(settings.upstream)
    own_id = share.topology.process_id
    return UpstreamMongos(addresses, moved=share.announce_upstream, access=access, own_id=own_id)


async def _read_version(version: ClusterVersion, first: asyncio.Event, keep: bool) -> None:
    await version.read()
    first.set()
    if keep:
        await version.keep_current()
