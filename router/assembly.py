"""The parts of one process of the router, put together: their start, drain and end."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import anyio
import structlog
from bson.objectid import ObjectId

from router.access.login_resources import LoginResources
from router.admin.router_status import collect_own
from router.admin.server import admin_port
from router.allocator import keep_slack_small
from router.catalog.catalog_primary import CatalogPrimary
from router.catalog.cluster import Cluster, ReplicaSetFactory
from router.catalog.reported_version import ClusterVersion
from router.catalog.server_checks import Check, ServerChecks
from router.commands.serving_process import NOW, ServerDescription, ServingProcess
from router.config.settings import Settings, settings_of_streams
from router.config.tracing import SpanExport
from router.counters.process_counters import measure_lag
from router.cursors.registry import CursorRegistry
from router.feed.feed import MOST_CLIENTS, FeedPort
from router.limits.client_limits import FOR_FEEDS, supported_connections
from router.peers.messages import IdentityRead, UseUpstream
from router.peers.peers import Peers
from router.server.listener import Listener
from router.stream.open_streams import OpenStreams
from router.stream_settings import StreamSettings, settings_of_process
from router.tasks import OwnedTasks
from router.tls.certificates import Certificates
from router.tls.handshake import Handshakes
from router.upstream.upstream_mongos import UpstreamMongos, parse_upstream
from shard_client.wire.authentication import Access
from shard_client.wire.tls import TlsContexts

log = structlog.get_logger(component="CONTROL")

_IDENTITY_WAIT = 3.0

Parts = tuple[ServingProcess, Listener, FeedPort | None]
"""The parts of one process that answer clients."""


async def serve_process(parts: AbstractAsyncContextManager[Parts], stop: asyncio.Event) -> None:
    """Run the router until ``stop`` is set, then drain it and end all its parts.

    With TLS, it exchanges its certificates on SIGHUP. ``parts`` is what ``process_parts`` returns.

    Raises:
        ValueError: if neither a config server nor a replica set is set, or a file with a secret or
            certificate is invalid.
        OSError: if a port cannot be opened, or such a file not be read.
    """
    async with AsyncExitStack() as owned:
        process, listener, feed = await owned.enter_async_context(parts)
        settings = process.settings
        ports = {"port": await listener.listen(settings.net.hosts, settings.net.port)}
        collect = partial(collect_own, process)
        ports |= await owned.enter_async_context(
            admin_port(settings.net, process.certificates, collect)
        )
        if feed is not None and settings.feed.port is not None:
            ports["feedPort"] = await feed.listen([settings.feed.bind_ip], settings.feed.port)
        log.info("Waiting for connections", component="NETWORK", **ports)
        if process.certificates is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, process.certificates.rotate)
        await stop.wait()
        drain_time = settings.process.drain_time
        log.info("Shutting down", drainSeconds=drain_time)
        await listener.drain(drain_time)
    log.info("Shut down")


@asynccontextmanager
async def process_parts(
    settings: Settings,
    arguments: Sequence[str],
    *,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = NOW,
    settings_of: Callable[[Mapping[str, Any]], StreamSettings] = settings_of_streams,
    peers: Peers | None = None,
    server: ServerDescription | None = None,
) -> AsyncIterator[Parts]:
    """Provide a process's parts for a block, none of them listening yet.

    Args:
        settings: the operator's settings.
        arguments: the command line, for getCmdLineOpts.
        replica_set: creates the monitor of a replica set, as for ``Cluster``.
        now: the wall clock.
        settings_of: returns the settings of streams for the server parameters.
        peers: the other processes of the router, with which it divides its bounds; None if it is
            the only process (docs/workers.md).
        server: what clients are told of the router, as far as it is common to all processes; None
            if this is the only one.

    Raises ValueError and OSError as ``serve_process``.
    """
    number, count = (0, 1) if peers is None else (peers.number, peers.count)
    server = server or ServerDescription(started=now())
    server.host = socket.gethostname()
    of_streams = settings_of_process(settings_of(settings.parameters), count)
    certificates = Certificates(settings.net.tls) if settings.net.tls.enabled else None
    async with AsyncExitStack() as owned:
        if settings.tracing.endpoint is not None:
            owned.push_async_callback(SpanExport(settings.tracing, number).close)
        servers = await owned.enter_async_context(
            _servers_of(
                settings,
                of_streams,
                tls=None if certificates is None else certificates.towards_cluster,
                replica_set=replica_set,
                now=now,
                own_id=server.topology.process_id,
            )
        )
        tasks = await owned.enter_async_context(OwnedTasks())
        access = None
        if settings.security.authorization:
            limits, refresh = settings.client_limits, settings.process.refresh_users
            access = LoginResources(tasks, servers.cluster, limits, certificates, refresh=refresh)
        cursors = _cursors(of_streams, peers, servers, access)
        owned.push_async_callback(cursors.close)
        checks = None
        if settings.net.admin.port is not None:
            checks = ServerChecks(*servers)
            owned.push_async_callback(checks.close)
        fail_points = None
        if settings.process.test_commands:
            from router.commands.fail_points import FailPoints  # no other router loads them

            fail_points = FailPoints()
        process = ServingProcess(
            cursors=cursors,
            cluster=servers.cluster,
            upstream=servers.upstream,
            access=access,
            certificates=certificates,
            peers=peers,
            settings=settings,
            arguments=arguments,
            client_limits=settings.client_limits,
            server=server,
            checks=checks,
            fail_points=fail_points,
            now=now,
        )
        known = _keep_current(tasks, process, servers)
        yield await owned.enter_async_context(_ports(process, known))


def _keep_current(tasks: OwnedTasks, process: ServingProcess, servers: "_Servers") -> asyncio.Event:
    """Run what goes on beside the clients; return an event for the version: it is known."""
    peers, certificates = process.peers, process.certificates
    if peers is not None and servers.mongos is not None:
        servers.mongos.moved = lambda *choice: peers.tell_parent(UseUpstream(*choice))
    if certificates is not None and certificates.towards_cluster is not None:
        certificates.rotated = servers.cluster.renew_monitors
    memory = process.cursors.streams.resources.memory
    tasks.run(keep_slack_small, memory, name="give back freed memory")
    if process.checks is not None:
        tasks.run(measure_lag, process.counters.loop_lag)
    report = (
        process.server.become
        if peers is None
        else lambda identity: peers.tell_parent(IdentityRead(identity))
    )
    version, known = ClusterVersion(*servers, report), asyncio.Event()
    # The first process keeps the version current for all.
    once = peers is not None and peers.number > 1
    tasks.run(partial(version.keep_current, known, once=once), name="read the version")
    return known


class _Servers(NamedTuple):
    """The servers that the settings name: the cluster, and the mongoses for other commands."""

    cluster: Cluster
    mongos: UpstreamMongos | None

    @property
    def upstream(self) -> UpstreamMongos | CatalogPrimary | None:
        """What all other commands are passed to: a replica set is its own upstream."""
        return self.mongos if self.cluster.sharded else CatalogPrimary(self.cluster)


@asynccontextmanager
async def _servers_of(
    settings: Settings,
    of_streams: StreamSettings,
    *,
    tls: TlsContexts | None,
    replica_set: ReplicaSetFactory | None = None,
    now: Callable[[], datetime] = NOW,
    own_id: ObjectId | None = None,
) -> AsyncIterator[_Servers]:
    """Provide the servers for a block, and close the connections to them after it.

    ``own_id`` is as for ``UpstreamMongos``. Raises ValueError and OSError as ``serve_process``.
    """
    if settings.seeds is None:
        raise ValueError(
            "sharding.configDB is not set: name the config server there, or a replica set in "
            "replication.replicaSet"
        )
    on_members, on_upstream = settings.security.logins()
    cluster = Cluster(
        settings.seeds,
        replace(of_streams, local_threshold=settings.replication.local_ping_threshold_ms * 0.001),
        sharded=settings.sharded,
        replica_set=replica_set,
        wall=lambda: now().timestamp(),
        access=Access(on_members, tls),
    )
    mongos = None
    try:
        if settings.upstream is not None:
            addresses = parse_upstream(settings.upstream)
            mongos = UpstreamMongos(addresses, access=Access(on_upstream, tls), own_id=own_id)
        yield _Servers(cluster, mongos)
    finally:
        if mongos is not None:
            mongos.close()
        await cluster.close()


def _cursors(
    settings: StreamSettings, peers: Peers | None, servers: _Servers, access: LoginResources | None
) -> CursorRegistry:
    """Return the registry of cursors, which revokes those of users that lose their rights."""
    upstream = servers.upstream
    lend = None if upstream is None else upstream.lend
    if isinstance(upstream, UpstreamMongos) and access is not None and upstream.user is None:
        lend = None  # the mongos would refuse the router's lookups
    cursors = CursorRegistry(
        OpenStreams(servers.cluster, settings),
        new_id=None if peers is None else peers.new_cursor_id,
        mongos=lend,
        sent_time=None if access is None else lambda: access.times.newest[0],
    )
    if access is not None:
        access.users.changed = cursors.revoke
    return cursors


@asynccontextmanager
async def _ports(process: ServingProcess, known: asyncio.Event) -> AsyncIterator[Parts]:
    """Provide the ports of a process for a block, none listening yet, once its version is known.

    They wait some seconds for ``known``.
    """
    settings, handshakes = process.settings, None
    if process.certificates is not None:
        contexts, required = process.certificates.contexts, settings.net.tls.mode == "requireTLS"
        timeout = process.client_limits.login_time
        handshakes = Handshakes(lambda: contexts.incoming, required=required, timeout=timeout)
    async with AsyncExitStack() as owned:
        listener = await owned.enter_async_context(Listener(process, handshakes=handshakes))
        feed = None
        if settings.feed.port is not None:
            most = supported_connections(MOST_CLIENTS, part=FOR_FEEDS)
            port = FeedPort(process, most=most, handshakes=handshakes)
            feed = await owned.enter_async_context(port)
        with anyio.move_on_after(_IDENTITY_WAIT):
            await known.wait()
        yield process, listener, feed


async def check_servers(settings: Settings) -> Sequence[Check]:
    """Check the servers that the settings name, once.

    Raises ValueError and OSError as ``serve_process``, but opens no port.
    """
    of_streams = settings_of_streams(settings.parameters)
    of_streams = replace(of_streams, open_timeout=of_streams.connect_timeout)
    net = settings.net.tls
    tls = TlsContexts(net.files()) if net.enabled and net.towards_cluster else None
    async with _servers_of(settings, of_streams, tls=tls) as servers, AsyncExitStack() as owned:
        checks = ServerChecks(*servers)
        owned.push_async_callback(checks.close)
        return await checks.results(whole=True)
