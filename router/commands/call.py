"""One command of a client, and the checks of the fields that any command may have."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from router.access.signing import check_drift
from router.catalog.catalog_primary import CatalogPrimary
from router.commands.client import Client
from router.commands.serving_process import ServingProcess
from router.privileges import CLUSTER, User
from router.request.accepted import OF_ANY_COMMAND, brief, is_cluster_time
from router.upstream.server_link import ServerLink
from router.upstream.upstream_mongos import UpstreamMongos
from shard_client.errors import RESUMABLE_CODES, CommandError, ErrorCode, NetworkError
from shard_client.wire.documents import encode

_MOST_CHECKED = 1024 * 1024


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
        """The upstream; None if there is none, or if it knows nothing of the client.

        That is another worker, or has logged in here alone, by a certificate.
        """
        login = self.client.login
        here_alone = login is not None and login.user is not None and login.by_certificate
        return None if self.client.is_worker or here_alone else self.process.upstream

    @property
    def upstream_link(self) -> ServerLink | None:
        """The client's own connection to ``upstream``, None if that is None."""
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
