"""What a command works with: the process, its client, and the call with its document."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bson.timestamp import Timestamp

from router.access.authorization import login_required, require
from router.access.login import AccessControl, Login
from router.access.signing import check_drift
from router.access.users import User
from router.catalog.cluster import Cluster
from router.catalog.server_checks import ServerChecks
from router.catalog.upstream import CatalogPrimary, Reachable, ServerLink, UpstreamMongos
from router.catalog.version import ServerIdentity
from router.client_limits import ClientLimits
from router.commands.job_reports import JobReports
from router.commands.reply_bodies import (
    AnyAnswer,
    without_state_change,
)
from router.commands.topology_version import TopologyVersion
from router.cursors.registry import CursorRegistry
from router.peers.peers import Peers
from router.privileges import CLUSTER
from router.request.accepted import OF_ANY_COMMAND, brief, is_cluster_time
from router.request.fields import check_api
from router.status_sums import Histogram
from router.tls.certificates import Certificates
from shard_client.cluster_clock import ClusterClock, is_signed
from shard_client.errors import RESUMABLE_CODES, CommandError, ErrorCode, NetworkError
from shard_client.wire.bson_slices import find
from shard_client.wire.compression import AVAILABLE
from shard_client.wire.documents import decode, encode
from shard_client.wire.frames import BODY_OFFSET

if TYPE_CHECKING:  # which only a router with ``enableTestCommands`` loads
    from router.commands.fail_points import FailPoints

_MOST_CHECKED = 1024 * 1024


NOW: Final = partial(datetime.now, UTC)
"""The wall clock."""

UNKNOWN: Final = "<UNKNOWN>"
_USUAL: Final = frozenset((
    "collStats", "count", "create", "createIndexes", "dbStats", "delete", "distinct", "drop",
    "dropDatabase", "dropIndexes", "find", "findAndModify", "getMore", "insert",
    "listCollections", "listDatabases", "listIndexes", "update",
))  # fmt: skip
"""The commands that are counted beside the router's own: a client may send any name."""


def counted_name(name: str) -> str:
    """Return the official name of a command; those of unknown names are counted together."""
    command = COMMANDS.get(name)
    if command is not None:
        return command.names[0]
    return name if name in _USUAL else UNKNOWN


@dataclass(slots=True)
class Counters:
    """The counters of serverStatus since the process began."""

    connections: int = 0
    connections_created: int = 0
    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    passed_through: int = 0
    passed_on: int = 0
    awaiting_hellos: int = 0
    user_asserts: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    """How often each command was run, by its official name."""
    failures: Counter[str] = field(default_factory=Counter)
    """How often the router itself answered it with an error."""


@dataclass(slots=True)
class Node:
    """The router as its commands see it.

    Args:
        clock: the cluster's time as reported by servers; replies carry it.
        cursors: the clients' open merged cursors.
        cluster: the shards and the config server.
        upstream: the upstream for all other commands; without one they are unknown.
        arguments: the command line, for getCmdLineOpts.
        options: the parsed options, nested and named as in mongos's file.
        parameters: the start parameters by name.
        host: this machine's name.
        now: the wall clock.
        jobs: what running jobs have reported.
        fail_points: switches for drivers' tests; None without ``enableTestCommands``.
        client_limits: the limits of client connections.
        peers: the other workers of this router, if there are any.
        checks: checks of the servers that the settings name; None without an admin port.
        lag: the event loop's lag; None without an admin port.
        access: the users and their rights; None if clients do not log in.
        certificates: the router's certificates; None without TLS.
    """

    clock: ClusterClock
    cursors: CursorRegistry
    cluster: Cluster
    upstream: UpstreamMongos | CatalogPrimary | None = None
    arguments: list[str] = field(default_factory=list)
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    host: str = "localhost"
    port: int = 0
    now: Callable[[], datetime] = NOW
    started: datetime = field(default_factory=NOW)
    identity: ServerIdentity = field(default_factory=ServerIdentity)
    topology: TopologyVersion = field(default_factory=TopologyVersion)
    counters: Counters = field(default_factory=Counters)
    jobs: JobReports = field(default_factory=JobReports)
    fail_points: "FailPoints | None" = None
    client_limits: ClientLimits = field(default_factory=ClientLimits)
    compressors: tuple[str, ...] = AVAILABLE
    peers: Peers | None = None
    checks: ServerChecks | None = None
    lag: Histogram | None = None
    access: AccessControl | None = None
    certificates: Certificates | None = None

    def become(self, identity: ServerIdentity) -> None:
        """Report ``identity`` from now on; wake waiting hellos if it changed."""
        if identity != self.identity:
            self.identity = identity
            self.topology.advance()

    def as_mongos_says(self, error: CommandError) -> CommandError:
        """Return a change stream's error with mongos's labels and code (docs/protocol.md#opening).

        State change errors keep their code only while the router itself shuts down.
        """
        labelled = error.with_change_stream_label()
        return labelled if self.topology.quiescing else without_state_change(labelled)

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
        return self.access.times.newest or (None, None)

    def advance_clock(self, reply: bytes) -> None:
        """Advance the clock to the cluster time in another server's reply, a whole frame."""
        element = find(reply, b"$clusterTime", BODY_OFFSET)
        if element is None:
            return
        time = reply[element.start : element.end]
        # With authorization, members may refuse a time without a valid signature.
        if self.access is None or is_signed(time):
            self.clock.advance(time)


@dataclass(slots=True)
class Client:
    """One client connection as the commands see it.

    ``is_worker`` is true if the client is another worker of this router, which asks for one of its
    clients or for itself; it is answered from this process alone, and nothing is passed on.
    ``is_local`` is true if the client connects from this machine, over a loopback address.
    ``login`` is None if clients do not log in, and for workers.
    """

    connection_id: int
    peer: str
    metadata: Mapping[str, Any] | None = None
    greeted: bool = False
    is_worker: bool = False
    is_local: bool = False
    links: dict[Reachable, ServerLink] = field(default_factory=dict)
    login: Login | None = None

    @property
    def host(self) -> str:
        """The client's address, without the port."""
        return self.peer.rpartition(":")[0] or self.peer

    @property
    def user(self) -> User | None:
        """The user that is logged in; None without authorization, and for workers."""
        return None if self.login is None else self.login.user

    @property
    def label(self) -> str:
        """The client's address with its port, and its application's name if it has sent one."""
        application = (self.metadata or {}).get("application")
        name = application.get("name") if isinstance(application, Mapping) else None
        return f"{self.peer} {name}" if name else self.peer

    def link_to(self, server: Reachable) -> ServerLink:
        """Return this client's own link to another server, which connects on first use."""
        return self.links.setdefault(server, ServerLink(server))

    def cut_links(self) -> None:
        """Cut the client's connections to other servers, which then end its running commands."""
        for link in self.links.values():
            link.abort()
        if self.login is not None:
            self.login.close()


@dataclass(slots=True)
class Call:
    """One command: its name as sent, its database, its decoded document, its client.

    ``exhaust`` is true if the client accepts further answers without asking again. ``raw`` is the
    document as received, None if no client sent it. ``on_behalf_of`` is the name of the user for
    whom another worker passes the command on. ``cursor_id`` is the cursor that the reply belongs
    to, once the command has opened it or may read it; it may be another worker's.
    """

    name: str
    database: str
    command: Mapping[str, Any]
    client: Client
    node: Node
    exhaust: bool = False
    raw: bytes | None = None
    on_behalf_of: str | None = None
    cursor_id: int | None = None

    def decoded_exactly(self) -> bool:
        """Return whether decoding lost nothing, such as a duplicate field or a deprecated type.

        Commands above a mebibyte count as exact: checking them would take long.
        """
        raw = self.raw
        return raw is None or len(raw) > _MOST_CHECKED or encode(self.command) == raw

    @property
    def upstream(self) -> UpstreamMongos | CatalogPrimary | None:
        """The upstream, None if there is none or the client is another worker."""
        return None if self.client.is_worker else self.node.upstream

    @property
    def upstream_link(self) -> ServerLink | None:
        """The client's own connection to the upstream, None if there is no upstream."""
        upstream = self.upstream
        return None if upstream is None else self.client.link_to(upstream)

    @property
    def user(self) -> User | None:
        """The user that is logged in; None without authorization, and for workers."""
        return self.client.user

    @property
    def user_name(self) -> str | None:
        """The name of the user for whom the command runs, which another worker passes on."""
        if self.client.is_worker:
            return self.on_behalf_of
        user = self.user
        return None if user is None else str(user)

    @property
    def lsid(self) -> bytes | None:
        """The id of the logical session that the command belongs to."""
        lsid = self.command.get("lsid")
        if isinstance(lsid, Mapping) and isinstance(lsid.get("id"), bytes):
            return bytes(lsid["id"])
        return None

    async def check_generic_fields(self) -> None:
        """Check the fields that any command may have, of one that the router answers.

        Raises:
            CommandError: mongos's error; without an upstream, and before a login, which opens no
                connection to it, that the router does not know a value.
        """
        unknown = {
            name: self.command[name]
            for name, accepts in OF_ANY_COMMAND.items()
            if name in self.command and not accepts(self.command[name])
        }
        login = self.client.login
        if unknown and self.upstream is not None and (login is None or login.user is not None):
            await self.let_upstream_check({"ping": 1, **unknown})
        elif unknown:
            raise CommandError(ErrorCode.BadValue, f"mergerouter does not know {brief(unknown)}")

    async def let_upstream_check(self, command: Mapping[str, Any]) -> None:
        """Let the upstream refuse a command with fields that only it can check.

        It does not know the cursor of a getMore, and says so if the fields are valid. If it does
        not answer, they have no effect.

        Raises:
            CommandError: a field is invalid.
        """
        link = self.upstream_link
        assert link is not None
        try:
            with suppress(NetworkError):
                await link.command(self.database, command)
        except CommandError as error:
            if error.code != ErrorCode.CursorNotFound and error.code not in RESUMABLE_CODES:
                raise

    async def check_time(self) -> None:
        """Check the client's ``$clusterTime``, and its signature if the client is logged in.

        A malformed one is refused with the other fields. A user who may advance the clock needs no
        signature.

        Raises:
            CommandError: mongos's error.
        """
        value = self.command["$clusterTime"]
        if not is_cluster_time(value):
            return
        check_drift(value["clusterTime"], self.node.now().timestamp())
        access, user = self.node.access, self.user
        if access is None or user is None or user.privileges.allow(CLUSTER, "advanceClusterTime"):
            return
        await access.times.check(value)


Handler = Callable[[Call], Awaitable[AnyAnswer]]


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its names (the first is the official one) and its function.

    A command with ``while_quiescing`` is also answered during shutdown. With authorization, one
    without ``before_login`` requires a login, and one with ``action`` the right to that action on
    the cluster. ``is_ours``, if given, takes the raw command and returns whether the router answers
    it, so that commands for the upstream are not decoded. ``refuse_early``, if given, takes the raw
    command and the user, and raises the CommandError of a command that need not be decoded for it.
    A command with ``checks_fields`` checks its time limit and read concern with its other fields.
    """

    names: tuple[str, ...]
    run: Handler
    help: str = ""
    admin_only: bool = False
    while_quiescing: bool = False
    before_login: bool = False
    action: str | None = None
    api_versions: tuple[str, ...] = ()
    checks_fields: bool = False
    is_ours: Callable[[bytes], bool] | None = None
    refuse_early: Callable[[bytes, User | None], None] | None = None

    async def check(self, call: Call) -> None:
        """Make the checks that mongos makes before it runs any command; raises CommandError."""
        self._check_rights(call)
        if not self.checks_fields:
            await call.check_generic_fields()
        if "$clusterTime" in call.command:
            await call.check_time()

    def _check_rights(self, call: Call) -> None:
        check_api(self.names[0], call.command, self.api_versions)
        if self.admin_only and call.database != "admin":
            raise CommandError(
                ErrorCode.Unauthorized,
                f"{self.names[0]} may only be run against the admin database.",
            )
        if call.client.login is None or self.before_login:
            return
        user = call.user
        if user is None:
            raise login_required(self.names[0])
        if self.action is not None:
            require(user, CLUSTER, self.action, database=call.database, command=call.command)


COMMANDS: Final[dict[str, Command]] = {}
"""The commands by each of their names, including former ones."""


def answers(*names: str, **properties: Any) -> Callable[[Handler], Handler]:
    """Add the function below to ``COMMANDS``; arguments as for ``Command``."""

    def added(run: Handler) -> Handler:
        COMMANDS.update(dict.fromkeys(names, Command(names, run, **properties)))
        return run

    return added
