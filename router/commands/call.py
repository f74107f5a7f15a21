"""One command on its way: who asks, what, and what may be used to answer."""

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

    ``is_worker`` tells that it is another worker of this router, which asks for a client or for
    itself: it is answered from what is here, and nothing is passed on. ``is_local`` tells that the
    client connects from this machine, over a loopback address.
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
        """The address that it comes from, without the port."""
        return self.peer.rpartition(":")[0] or self.peer

    def upstream_link(self, upstream: "UpstreamMongos") -> "ServerLink":
        """Return this client's own connection to the upstream, not yet opened at first."""
        if self.link is None:
            self.link = upstream.link()
        return self.link

    def worker_link(self, peer: "Peer") -> "ServerLink":
        """Return this client's own connection to another worker, not yet opened at first."""
        return self.worker_links.setdefault(peer.number, peer.link())

    def cut_links(self) -> None:
        """Cut all its connections to other servers, so that they end what still runs there."""
        for link in (self.link, *self.worker_links.values()):
            if link is not None:
                link.abort()


@dataclass(slots=True)
class Call:
    """One command: its name as sent, its database, its decoded document, its client.

    ``exhaust`` tells that the client takes further answers without asking again. ``raw`` is the
    document as it came, None for one that no client sent.
    """

    name: str
    database: str
    command: Mapping[str, Any]
    client: Client
    node: "Node"
    exhaust: bool = False
    raw: bytes | None = None

    def decoded_exactly(self) -> bool:
        """Tell whether nothing was lost in decoding: a field given twice, a type out of use.

        Commands above a mebibyte are not checked, which would take long.
        """
        raw = self.raw
        return raw is None or len(raw) > _MOST_CHECKED or encode(self.command) == raw

    @property
    def upstream(self) -> "UpstreamMongos | None":
        """Where the command may go on to, if the client may have it passed on."""
        return None if self.client.is_worker else self.node.upstream

    @property
    def peers(self) -> "Peers | None":
        """The other workers, if there are any and the client is none of them."""
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

    ``while_quiescing`` tells that it is answered until the end, ``for_tests`` that it exists under
    ``enableTestCommands`` only. ``is_ours``, if given, tells by the raw command whether the router
    answers it, without decoding what goes on to the upstream.
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
        """Refuse what mongos refuses before it runs any command; raises CommandError."""
        check_api(self.names[0], call.command, self.api_versions)
        if self.admin_only and call.database != "admin":
            raise CommandError(
                ErrorCode.Unauthorized,
                f"{self.names[0]} may only be run against the admin database.",
            )
