"""One command call: its client, its document and the state used to answer it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from router.commands.answer import AnyAnswer
from router.commands.api_version import check_api
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.wire.frames import encode

if TYPE_CHECKING:
    from router.commands.node import Node
    from router.peers.peers import Peer, Peers
    from router.upstream_mongos import ServerLink, UpstreamMongos


_MOST_CHECKED = 1024 * 1024


@dataclass(slots=True)
class Client:
    """One client connection as the commands see it.

    ``is_worker`` is true if the client is another worker of this router, which asks for one of its
    clients or for itself; it is answered from this process alone, and nothing is passed on.
    ``is_local`` is true if the client connects from this machine, over a loopback address.
    """

    connection_id: int
    peer: str
    metadata: Mapping[str, Any] | None = None
    greeted: bool = False
    link: "ServerLink | None" = None
    is_worker: bool = False
    is_local: bool = False
    worker_links: "dict[int, ServerLink]" = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The client's address, without the port."""
        return self.peer.rpartition(":")[0] or self.peer

    def upstream_link(self, upstream: "UpstreamMongos") -> "ServerLink":
        """Return this client's own link to the upstream, which connects on first use."""
        if self.link is None:
            self.link = upstream.link()
        return self.link

    def worker_link(self, peer: "Peer") -> "ServerLink":
        """Return this client's own link to another worker, which connects on first use."""
        return self.worker_links.setdefault(peer.number, peer.link())

    def cut_links(self) -> None:
        """Cut the client's connections to other servers, which then end its running commands."""
        for link in (self.link, *self.worker_links.values()):
            if link is not None:
                link.abort()


@dataclass(slots=True)
class Call:
    """One command: its name as sent, its database, its decoded document, its client.

    ``exhaust`` is true if the client accepts further answers without asking again. ``raw`` is the
    document as received, None if no client sent it.
    """

    name: str
    database: str
    command: Mapping[str, Any]
    client: Client
    node: "Node"
    exhaust: bool = False
    raw: bytes | None = None

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
    def peers(self) -> "Peers | None":
        """The other workers, None if there are none or the client is one of them."""
        return None if self.client.is_worker else self.node.peers

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
    ``for_tests`` exists under ``enableTestCommands`` only. ``is_ours``, if given, takes the raw
    command and returns whether the router answers it, so that commands for the upstream are not
    decoded.
    """

    names: tuple[str, ...]
    run: Handler
    help: str = ""
    admin_only: bool = False
    while_quiescing: bool = False
    for_tests: bool = False
    api_versions: tuple[str, ...] = ()
    is_ours: Callable[[bytes], bool] | None = None

    def check(self, call: Call) -> None:
        """Make the checks that mongos makes before it runs any command; raises CommandError."""
        check_api(self.names[0], call.command, self.api_versions)
        if self.admin_only and call.database != "admin":
            raise CommandError(
                ErrorCode.Unauthorized,
                f"{self.names[0]} may only be run against the admin database.",
            )
