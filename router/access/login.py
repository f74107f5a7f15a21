"""A client's login: its SASL conversation, relayed to a server that knows the cluster's users.

The client proves itself to that server with its own credentials; the router sees no password. With
an upstream, the server is the client's own upstream connection, which is then logged in as the
client; without one, it is the config server's primary. A certificate, which the router has checked
in the handshake, cannot be relayed: such a client is logged in here alone.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from router.access.certificate_login import user_of_certificate
from router.access.login_log import LoginLog
from router.access.users import User, UserName, Users
from router.catalog.cluster import CONFIG, Cluster
from router.fair_limit import FairLimit
from router.upstream_mongos import ServerLink
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError
from shard_client.replica_set.read_preference import PRIMARY
from shard_client.wire.connection import Address, Connection
from shard_client.wire.tls import Certificate

_CONNECT_TIMEOUT = 5.0
_FAILURES = frozenset(
    {ErrorCode.AuthenticationFailed, ErrorCode.UserNotFound, ErrorCode.MechanismUnavailable}
)
"""Refusals of a login: wrong password, unknown user, unavailable mechanism."""


class ConfigServer:
    """The config server's primary, as a server that logins are relayed to.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def connect(self) -> Connection:
        """Open a connection that is not logged in; raises CommandError, NetworkError."""
        replica_set = await self._cluster.locate(CONFIG, None, fresh=False)
        address = await replica_set.select(PRIMARY, _CONNECT_TIMEOUT)
        return await Connection.open(
            address,
            timeout=_CONNECT_TIMEOUT,
            tls=self._cluster.access.context,
            app_name="mergerouter login",
        )

    def serves(self, address: Address) -> bool:
        """Return True: a conversation ends where it began."""
        return True


class Login:
    """The login of one client connection.

    Args:
        users: the cluster's users.
        cluster: the cluster, whose config server logins are relayed to without an upstream.
        peer: the client's address and port, for the log.
        in_progress: bounds the logins in progress.
        failed_delay: seconds before a refused login is answered.
    """

    def __init__(
        self,
        users: Users,
        cluster: Cluster,
        peer: str,
        *,
        in_progress: FairLimit,
        failed_delay: float = 0.0,
    ) -> None:
        self._users = users
        self._config_server = ConfigServer(cluster)
        self._log = LoginLog(peer)
        self._address = peer.rpartition(":")[0] or peer
        self._in_progress = in_progress
        self._failed_delay = failed_delay
        self.begun_at: float | None = None
        """The event loop's time at which a login began that is in progress; None if none is."""
        self._user: User | None = None
        self.by_certificate = False
        """Whether the client has logged in here, by its certificate, and not on the upstream."""
        self._conversation: ServerLink | None = None

    @property
    def user(self) -> User | None:
        """The user that is logged in; None before the login, or when it has been dropped."""
        user = self._user
        return user if user is not None and user.exists else None

    async def hello(self, link: ServerLink | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Relay the part of a hello that concerns logins; return the reply's part.

        A speculative login that fails leaves no trace in the reply, as with mongos.

        Args:
            link: the client's connection to the upstream; None without an upstream.
            fields: ``saslSupportedMechs`` and ``speculativeAuthenticate``, as far as present.

        Raises:
            CommandError: a field is malformed.
            NetworkError: the connection broke.
        """
        await self._begin()
        try:
            return await self._hello(link, fields)
        except BaseException:
            self.close()
            raise

    async def _hello(self, link: ServerLink | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        relaying = self._link(link)
        asked = fields.get("speculativeAuthenticate")
        if isinstance(asked, Mapping):
            self._log.begun(str(asked.get("db")), asked, speculative=True)
        reply = await relaying.command("admin", {"hello": 1, **fields})
        answer: dict[str, Any] = {}
        if "saslSupportedMechs" in reply:
            answer["saslSupportedMechs"] = reply["saslSupportedMechs"]
        speculative = reply.get("speculativeAuthenticate")
        if isinstance(speculative, Mapping):
            relaying.pin()
            answer["speculativeAuthenticate"] = dict(speculative)
            if speculative.get("done"):
                await self._done(relaying)
        elif asked is not None:
            # The login continues with saslStart: it costs the same whether the user exists or not.
            self._log.failed()
        else:
            self.close()
        return answer

    async def converse(
        self, link: ServerLink | None, database: str, command: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Relay one step of a conversation and return the reply's fields.

        Args:
            link: the client's connection to the upstream; None without an upstream.
            database: the command's database.
            command: saslStart or saslContinue, with its own fields alone.

        Raises:
            CommandError: the server refuses the step.
            NetworkError: the connection broke.
        """
        await self._begin()
        try:
            return await self._converse(link, database, command)
        except BaseException:
            self.close()
            raise

    async def _converse(
        self, link: ServerLink | None, database: str, command: Mapping[str, Any]
    ) -> dict[str, Any]:
        relaying = self._link(link)
        if "saslStart" in command:
            self._log.begun(database, command, speculative=False)
        await relaying.connect()
        relaying.pin()
        try:
            reply = await relaying.command(database, command)
        except CommandError as error:
            if error.code in _FAILURES:
                self._log.failed(error)
            if error.code == ErrorCode.AuthenticationFailed:
                await asyncio.sleep(self._failed_delay)  # while it counts as in progress
            raise
        if reply.get("done"):
            await self._done(relaying)
        return {name: value for name, value in reply.items() if name in _STEP_FIELDS}

    async def present(
        self,
        certificate: Certificate | None,
        own: Certificate | None,
        database: object,
        command: Mapping[str, Any],
        *,
        speculative: bool = False,
    ) -> dict[str, Any]:
        """Log in with the client's certificate, which the router itself checks.

        Args:
            certificate: the client's certificate; None without one.
            own: the router's certificate.
            database: the command's database.
            command: the fields of ``authenticate``.
            speculative: whether they are part of a hello.

        Returns:
            The reply's fields.

        Raises:
            CommandError: the login is refused, or the config server does not answer.
        """
        await self._begin()
        try:
            self._log.begun(str(database), command, speculative=speculative)
            try:
                name = user_of_certificate(certificate, own, database, command)
                self._check_same(name)
                self._user = await self._users.get(name)
            except CommandError as error:
                if error.code in _FAILURES:
                    self._log.failed(error)
                    await asyncio.sleep(self._failed_delay)
                raise
            self.by_certificate = True
            self._log.succeeded(name.user, name.database)
            return {"dbname": name.database, "user": name.user}
        finally:
            self.close()

    async def log_out(self, link: ServerLink | None, database: str) -> None:
        """End the login of a user of ``database``, here and on the connection to the upstream.

        Raises:
            CommandError: the upstream's error.
            NetworkError: the connection broke.
        """
        if link is not None and not self.by_certificate:
            await link.command(database, {"logout": 1})
        if self._user is not None and self._user.name.database == database:
            self._user, self.by_certificate = None, False
        self.close()

    def close(self) -> None:
        """End a login in progress; cut its connection to the config server, if it has one."""
        if self._conversation is not None:
            self._conversation.abort()
            self._conversation = None
        self._log.ended()
        if self.begun_at is not None:
            self.begun_at = None
            self._in_progress.release(self._address)

    async def _begin(self) -> None:
        """Count this login as in progress; wait while there are too many."""
        if self.begun_at is None:
            await self._in_progress.admit(self._address)
            self.begun_at = asyncio.get_running_loop().time()

    def _link(self, link: ServerLink | None) -> ServerLink:
        if link is not None:
            return link
        if self._conversation is None:
            self._conversation = ServerLink(self._config_server)
        return self._conversation

    async def _done(self, link: ServerLink) -> None:
        """Take over the user that the server says is logged in."""
        status = await link.command("admin", {"connectionStatus": 1})
        names = _authenticated(status)
        if len(names) != 1:
            raise CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.")
        name = names[0]
        self._check_same(name)
        self._user = await self._users.get(name)
        self._log.succeeded(name.user, name.database)
        self.close()

    def _check_same(self, name: UserName) -> None:
        """Refuse a second login as another user; a connection has one user, as with mongos."""
        user = self._user
        if user is None or user.name == name:
            return
        raise CommandError(
            5626701,
            "Each client connection may only be authenticated once. Previously authenticated as: "
            f"{user.name}",
        )


_STEP_FIELDS = frozenset({"conversationId", "done", "payload", "ok"})


def _authenticated(status: Mapping[str, Any]) -> list[UserName]:
    info = status.get("authInfo")
    listed = info.get("authenticatedUsers") if isinstance(info, Mapping) else None
    return [
        UserName(str(each.get("user")), str(each.get("db")))
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, Mapping)
    ]
