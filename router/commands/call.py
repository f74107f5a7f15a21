"""The call of a command: its client and its document."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from router.access.login import Login
from router.access.signing import check_drift
from router.catalog.catalog_primary import CatalogPrimary
from router.commands.serving_process import ServingProcess
from router.privileges import CLUSTER, User
from router.request.accepted import OF_ANY_COMMAND, brief, is_cluster_time
from router.upstream.server_link import Reachable, ServerLink
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.errors import RESUMABLE_CODES, CommandError, ErrorCode, NetworkError
from shard_client.wire.documents import encode

_MOST_CHECKED = 1024 * 1024


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
    process: ServingProcess
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
        return None if self.client.is_worker else self.process.upstream

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

        Raises CommandError: mongos's error; without an upstream, and before a login, which opens no
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
        not answer, they have no effect. Raises CommandError: a field is invalid.
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
        signature. Raises CommandError: mongos's error.
        """
        value = self.command["$clusterTime"]
        if not is_cluster_time(value):
            return
        check_drift(value["clusterTime"], self.process.now().timestamp())
        access, user = self.process.access, self.user
        if access is None or user is None or user.privileges.allow(CLUSTER, "advanceClusterTime"):
            return
        await access.times.check(value)
