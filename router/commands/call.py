"""One command on its way: who asks, what, and what may be used to answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.commands.answer import AnyAnswer
from router.commands.api_version import check_api
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

if TYPE_CHECKING:
    from router.commands.node import Node
    from router.upstream_mongos import UpstreamLink, UpstreamMongos


@dataclass(slots=True)
class Client:
    """One client connection as the commands see it."""

    connection_id: int
    peer: str
    metadata: Mapping[str, Any] | None = None
    greeted: bool = False
    link: "UpstreamLink | None" = None

    def upstream_link(self, upstream: "UpstreamMongos") -> "UpstreamLink":
        """Return this client's own connection to the upstream, not yet opened at first."""
        if self.link is None:
            self.link = upstream.link()
        return self.link


@dataclass(slots=True)
class Call:
    """One command: its name as sent, its database, its decoded document, its client.

    ``exhaust`` tells that the client takes further answers without asking again.
    """

    name: str
    database: str
    command: Mapping[str, Any]
    client: Client
    node: "Node"
    exhaust: bool = False

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
    ``enableTestCommands`` only.
    """

    names: tuple[str, ...]
    run: Handler
    help: str = ""
    admin_only: bool = False
    while_quiescing: bool = False
    for_tests: bool = False
    api_versions: tuple[str, ...] = ()

    def check(self, call: Call) -> None:
        """Refuse what mongos refuses before it runs any command; raises CommandError."""
        check_api(self.names[0], call.command, self.api_versions)
        if self.admin_only and call.database != "admin":
            raise CommandError(
                ErrorCode.Unauthorized,
                f"{self.names[0]} may only be run against the admin database.",
            )
