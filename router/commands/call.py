"""One command call: its client, its document and the state used to answer it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router.access.authorization import login_required, require
from router.access.privileges import CLUSTER
from router.commands.answer import AnyAnswer
from router.commands.api_version import check_api
from router.upstream_mongos import ServerLink
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.wire.documents import encode

if TYPE_CHECKING:
    from router.access.login import Login
    from router.access.users import User
    from router.commands.node import Node
    from router.upstream_mongos import Reachable, UpstreamMongos
    from shard_client.wire.tls import Certificate


_MOST_CHECKED = 1024 * 1024


@dataclass(slots=True)
class Client:
    """One client connection as the commands see it.

    ``is_worker`` is true if the client is another worker of this router, which asks for one of its
    clients or for itself; it is answered from this process alone, and nothing is passed on.
    ``is_local`` is true if the client connects from this machine, over a loopback address.
    ``login`` is None if clients do not log in, and for workers. ``certificate`` is the one that the
    client has presented in its TLS handshake, checked with the authority; None without one.
    """

    connection_id: int
    peer: str
    metadata: Mapping[str, Any] | None = None
    greeted: bool = False
    is_worker: bool = False
    is_local: bool = False
    links: "dict[Reachable, ServerLink]" = field(default_factory=dict)
    login: "Login | None" = None
    certificate: "Certificate | None" = None

    @property
    def host(self) -> str:
        """The client's address, without the port."""
        return self.peer.rpartition(":")[0] or self.peer

    @property
    def label(self) -> str:
        """The client's address with its port, and its application's name if it has sent one."""
        application = (self.metadata or {}).get("application")
        name = application.get("name") if isinstance(application, Mapping) else None
        return f"{self.peer} {name}" if name else self.peer

    def link_to(self, server: "Reachable") -> "ServerLink":
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
    whom another worker passes the command on.
    """

    name: str
    database: str
    command: Mapping[str, Any]
    client: Client
    node: "Node"
    exhaust: bool = False
    raw: bytes | None = None
    on_behalf_of: str | None = None

    def decoded_exactly(self) -> bool:
        """Return whether decoding lost nothing, such as a duplicate field or a deprecated type.

        Commands above a mebibyte count as exact: checking them would take long.
        """
        raw = self.raw
        return raw is None or len(raw) > _MOST_CHECKED or encode(self.command) == raw

    @property
    def upstream(self) -> "UpstreamMongos | None":
        """The upstream, None if there is none or the client is another worker."""
        return None if self.client.is_worker else self.node.upstream

    @property
    def upstream_link(self) -> "ServerLink | None":
        """The client's own connection to the upstream, None if there is no upstream."""
        upstream = self.upstream
        return None if upstream is None else self.client.link_to(upstream)

    @property
    def user(self) -> "User | None":
        """The user that is logged in; None without authorization, and for workers."""
        login = self.client.login
        return None if login is None else login.user

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


Handler = Callable[[Call], Awaitable[AnyAnswer]]


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the registry: its names (the first is the official one) and its function.

    A command with ``while_quiescing`` is also answered during shutdown. A command with
    ``for_tests`` exists under ``enableTestCommands`` only. With authorization, a command without
    ``before_login`` requires a login, and one with ``action`` the right to that action on the
    cluster. ``is_ours``, if given, takes the raw command and returns whether the router answers it,
    so that commands for the upstream are not decoded. ``refuse_early``, if given, takes the raw
    command and the user, and raises the CommandError of a command that need not be decoded for it.
    """

    names: tuple[str, ...]
    run: Handler
    help: str = ""
    admin_only: bool = False
    while_quiescing: bool = False
    for_tests: bool = False
    before_login: bool = False
    action: str | None = None
    api_versions: tuple[str, ...] = ()
    is_ours: Callable[[bytes], bool] | None = None
    refuse_early: Callable[[bytes, "User | None"], None] | None = None

    def check(self, call: Call) -> None:
        """Make the checks that mongos makes before it runs any command; raises CommandError."""
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
