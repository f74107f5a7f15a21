"""What commands share: the parts and the clock of the router's process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bson.timestamp import Timestamp

from router.access.login_resources import LoginResources
from router.catalog.catalog_primary import CatalogPrimary
from router.catalog.cluster import Cluster
from router.catalog.reported_version import ServerIdentity
from router.catalog.server_checks import ServerChecks
from router.commands.job_reports import JobReports
from router.commands.reply_bodies import without_state_change
from router.commands.topology_version import TopologyVersion
from router.config.settings import Settings
from router.counters.process_counters import Counters
from router.cursors.registry import CursorRegistry
from router.limits.client_limits import ClientLimits
from router.peers.peers import Peers
from router.tls.certificates import Certificates
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.cluster_clock import ClusterClock, is_signed
from shard_client.errors import CommandError
from shard_client.wire.bson_slices import find
from shard_client.wire.documents import decode
from shard_client.wire.frames import BODY_OFFSET

if TYPE_CHECKING:  # which only a router with ``enableTestCommands`` loads
    from router.commands.fail_points import FailPoints

NOW: Final = partial(datetime.now, UTC)
"""The wall clock."""


@dataclass(slots=True)
class ServerDescription:
    """What clients are told of the router, which is a mongos to them.

    ``port`` is that for drivers. ``identity`` is the version, which is the cluster's; ``topology``
    is the version of this description, for clients that wait for the next one.
    """

    host: str = "localhost"
    port: int = 0
    started: datetime = field(default_factory=NOW)
    identity: ServerIdentity = field(default_factory=ServerIdentity)
    topology: TopologyVersion = field(default_factory=TopologyVersion)

    def become(self, identity: ServerIdentity) -> None:
        """Report ``identity`` from now on; wake waiting hellos if it changed."""
        if identity != self.identity:
            self.identity = identity
            self.topology.advance()


@dataclass(slots=True)
class ServingProcess:
    """A process of the router that serves clients, as its commands see it.

    Args:
        cursors: the clients' open merged cursors.
        cluster: the shards and the config server.
        upstream: the upstream for all other commands; without one they are unknown.
        access: the users and their rights; None if clients do not log in.
        certificates: the router's certificates; None without TLS.
        peers: the other workers of this router, if there are any.
        settings: the operator's settings.
        arguments: the command line, for getCmdLineOpts.
        client_limits: those of the settings, as far as the process can keep them.
        jobs: what running jobs have reported.
        checks: those of the servers; None without an admin port.
        fail_points: switches for drivers' tests; None without ``enableTestCommands``.
        now: the wall clock.
    """

    cursors: CursorRegistry
    cluster: Cluster
    upstream: UpstreamMongos | CatalogPrimary | None = None
    access: LoginResources | None = None
    certificates: Certificates | None = None
    peers: Peers | None = None
    settings: Settings = field(default_factory=Settings)
    arguments: Sequence[str] = ()
    client_limits: ClientLimits = field(default_factory=ClientLimits)
    server: ServerDescription = field(default_factory=ServerDescription)
    counters: Counters = field(default_factory=Counters)
    jobs: JobReports = field(default_factory=JobReports)
    checks: ServerChecks | None = None
    fail_points: "FailPoints | None" = None
    now: Callable[[], datetime] = NOW

    @property
    def clock(self) -> ClusterClock:
        """The cluster's time as reported by servers; replies carry it."""
        return self.cluster.clock

    def as_mongos_says(self, error: CommandError) -> CommandError:
        """Return a change stream's error with mongos's labels and code (docs/protocol.md#opening).

        State change errors keep their code only while the router itself shuts down.
        """
        labelled = error.with_change_stream_label()
        return labelled if self.server.topology.quiescing else without_state_change(labelled)

    def times(self) -> dict[str, Any]:
        """Return $clusterTime and operationTime for a reply; empty until a time is known."""
        raw, time = self.reply_times
        if raw is None:
            return {}
        return {"$clusterTime": decode(raw), "operationTime": time}

    @property
    def reply_times(self) -> tuple[bytes | None, Timestamp | None]:
        """The $clusterTime, as raw BSON, and the operationTime that clients are given.

        With authorization they are times with a valid signature, if there is one.
        """
        if self.access is None:
            return self.clock.raw, self.clock.time
        return self.access.times.newest

    def advance_clock(self, reply: bytes) -> None:
        """Advance the clock to the cluster time in another server's reply, a whole frame."""
        element = find(reply, b"$clusterTime", BODY_OFFSET)
        if element is None:
            return
        time = reply[element.start : element.end]
        # With authorization, members may refuse a time without a valid signature.
        if self.access is None or is_signed(time):
            self.clock.advance(time)
