"""A client's login: its SASL conversation, relayed to a server that knows the cluster's users.

The client proves itself to that server with its own credentials; the router sees no password. With
an upstream, the server is the client's own upstream connection, which is then logged in as the
client; without one, it is the config server's primary. A certificate, which the router has checked
in the handshake, cannot be relayed: such a client is logged in here alone.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog

from router.access.login_resources import LoginResources
from router.catalog.catalog_primary import CatalogPrimary
from router.privileges import User, UserName
from router.request.field_checks import missing_field
from router.upstream.server_link import ServerLink
from shard_client import spans
from shard_client.errors import CommandError, ErrorCode
from shard_client.wire.authentication import EXTERNAL, X509
from shard_client.wire.tls import Certificate

log = structlog.get_logger(component="ACCESS")

_LONGEST_NAME = 256
_MECHANISMS = frozenset({"SCRAM-SHA-1", "SCRAM-SHA-256", "MONGODB-X509", "PLAIN", "GSSAPI"})


class LoginLog:
    """Logs how one client's logins end, as mongos 6.0 does, and records each as a span.

    ``peer`` is the client's address and port.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._attempt: dict[str, Any] = {}
        self._span: spans.Span | None = None

    def record_begin(self, database: str, command: Mapping[str, Any], *, speculative: bool) -> None:
        """Record the login that a client begins with ``saslStart`` or, ``speculative``, in a hello.

        ``database`` is the user's. The fields of ``command`` need not be valid.
        """
        mechanism = str(command.get("mechanism"))
        self._attempt = {
            "mechanism": mechanism[:_LONGEST_NAME],
            "speculative": speculative,
            "principalName": scram_user(command.get("payload")),
            "authenticationDatabase": database[:_LONGEST_NAME],
        }
        self.record_end()
        self._span = spans.begin(
            "log in",
            {
                "db.system.name": "mongodb",
                "mergerouter.mechanism": mechanism if mechanism in _MECHANISMS else "other",
                "mergerouter.speculative": speculative,
            },
        )

    def record_success(self, user: str, database: str) -> None:
        """Log that a client has logged in."""
        named = {"principalName": user, "authenticationDatabase": database}
        self._log("Authentication succeeded", 20250, **named)
        self._end()

    def record_failure(self, error: CommandError | None = None) -> None:
        """Log that a server has refused a login; None if it gave no reason."""
        reason = "no reason given" if error is None else f"{error.code_name}: {error.message}"
        self._log("Authentication failed", 20249, error=reason)
        self._end(error or CommandError(ErrorCode.AuthenticationFailed, reason))

    def record_end(self) -> None:
        """End the span of a login that neither succeeded nor was refused, as abandoned."""
        if self._span is not None:
            self._span.set_attribute("mergerouter.abandoned", True)
            self._end()

    def _end(self, error: CommandError | None = None) -> None:
        if self._span is not None:
            spans.end(self._span, error)
            self._span = None

    def _log(self, event: str, number: int, **attributes: str) -> None:
        line = {**self._attempt, "remote": self._peer, "extraInfo": {}, **attributes}
        log.info(event, id=number, **line)


def scram_user(payload: object) -> str:
    """Return the name in a SCRAM client's first message (RFC 5802), empty if there is none."""
    if not isinstance(payload, bytes | str):
        return ""
    text = payload.decode(errors="replace") if isinstance(payload, bytes) else payload
    parts = text.split(",", 3)
    if len(parts) < 3 or not parts[2].startswith("n="):
        return ""
    return parts[2][2:].replace("=2C", ",").replace("=3D", "=")[:_LONGEST_NAME]


_FAILURES = frozenset(
    {ErrorCode.AuthenticationFailed, ErrorCode.UserNotFound, ErrorCode.MechanismUnavailable}
)
"""Refusals of a login: wrong password, unknown user, unavailable mechanism."""


class Login:
    """The login of one client connection.

    Args:
        access: the users, and what all logins share.
        peer: as for ``LoginLog``.
        certificate: the one that the client has presented in its TLS handshake, checked with the
            authority; None without one.
    """

    def __init__(
        self, access: LoginResources, peer: str, certificate: Certificate | None = None
    ) -> None:
        self._access = access
        self._certificate = certificate
        self._log = LoginLog(peer)
        self._address = peer.rpartition(":")[0] or peer
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

        These are ``saslSupportedMechs`` and ``speculativeAuthenticate``. A speculative login that
        fails leaves no trace in the reply, as with mongos. ``link`` is the client's connection to
        the upstream, if there is one. Raises CommandError: a field is malformed; NetworkError.
        """
        async with self._in_progress():
            relaying = self._link(link)
            asked = fields.get("speculativeAuthenticate")
            if isinstance(asked, Mapping):
                self._log.record_begin(str(asked.get("db")), asked, speculative=True)
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
                # The login continues with saslStart: it costs the same for a user who is unknown.
                self._log.record_failure()
            else:
                self.close()
            return answer

    async def converse(
        self, link: ServerLink | None, database: str, command: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Relay one step of a conversation and return the reply's fields.

        ``command`` is saslStart or saslContinue, without the fields that every command may have.
        ``link`` is as for ``hello``. Raises CommandError: the server refuses it; NetworkError.
        """
        async with self._in_progress():
            relaying = self._link(link)
            if "saslStart" in command:
                self._log.record_begin(database, command, speculative=False)
            await relaying.connect()
            relaying.pin()
            try:
                reply = await relaying.command(database, command)
            except CommandError as error:
                if error.code in _FAILURES:
                    self._log.record_failure(error)
                if error.code == ErrorCode.AuthenticationFailed:
                    await asyncio.sleep(self._access.failed_delay)  # while it counts as in progress
                raise
            if reply.get("done"):
                await self._done(relaying)
            return {name: value for name, value in reply.items() if name in _STEP_FIELDS}

    async def present(
        self, database: object, command: Mapping[str, Any], *, speculative: bool = False
    ) -> dict[str, Any]:
        """Log in with the client's certificate, which the router checks; return the reply's fields.

        ``command`` has the fields of ``authenticate``, which are ``speculative`` in a hello. Raises
        CommandError: the login is refused, or the config server does not answer.
        """
        async with self._in_progress():
            self._log.record_begin(str(database), command, speculative=speculative)
            try:
                name = self._user_of_certificate(database, command)
                self._check_same(name)
                self._user = await self._access.users.get(name)
            except CommandError as error:
                if error.code in _FAILURES:
                    self._log.record_failure(error)
                    await asyncio.sleep(self._access.failed_delay)
                raise
            self.by_certificate = True
            self._log.record_success(name.user, name.database)
            self.close()
            return {"dbname": name.database, "user": name.user}

    def _user_of_certificate(self, database: object, command: Mapping[str, Any]) -> UserName:
        """Return the user whose name is the subject of the client's certificate.

        Raises CommandError: mongos's error for an ``authenticate`` that is malformed or refused.
        """
        if "mechanism" not in command:
            raise missing_field("authenticate.mechanism")
        if command["mechanism"] != X509:
            raise CommandError(ErrorCode.BadValue, f"Unsupported mechanism: {command['mechanism']}")
        if database != EXTERNAL:
            raise CommandError(
                ErrorCode.ProtocolError,
                "X.509 authentication must always use the $external database.",
            )
        certificate, ours = self._certificate, self._access.certificates
        if certificate is None or not certificate.subject:
            raise CommandError(
                ErrorCode.AuthenticationFailed, "No verified subject name available from client"
            )
        if command.get("user", certificate.subject) != certificate.subject:
            raise CommandError(
                ErrorCode.AuthenticationFailed,
                "There is no x.509 client certificate matching the user.",
            )
        # By the subject of the certificate that the router shows to servers.
        members = None if ours is None else ours.contexts.own.membership
        if members and certificate.membership == members:
            raise CommandError(
                ErrorCode.AuthenticationFailed,
                "The provided certificate can only be used for cluster authentication, not client "
                "authentication: its organisation, units and domain components are those of the "
                "cluster's members",
            )
        return UserName(certificate.subject, EXTERNAL)

    async def log_out(self, link: ServerLink | None, database: str) -> None:
        """End the login of a user of ``database``, here and on the connection to the upstream.

        Raises CommandError, the upstream's; NetworkError.
        """
        if link is not None:
            await link.command(database, {"logout": 1})
        if self._user is not None and self._user.name.database == database:
            self._user, self.by_certificate = None, False
        self.close()

    def close(self) -> None:
        """End a login in progress; cut its connection to the config server, if it has one."""
        if self._conversation is not None:
            self._conversation.abort()
            self._conversation = None
        self._log.record_end()
        if self.begun_at is not None:
            self.begun_at = None
            self._access.in_progress.release(self._address)

    @asynccontextmanager
    async def _in_progress(self) -> AsyncIterator[None]:
        """Count this login as in progress, while there are not too many; an error ends it."""
        if self.begun_at is None:
            await self._access.in_progress.admit(self._address)
            self.begun_at = asyncio.get_running_loop().time()
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _link(self, link: ServerLink | None) -> ServerLink:
        if link is not None:
            return link
        if self._conversation is None:
            self._conversation = ServerLink(CatalogPrimary(self._access.cluster))
        return self._conversation

    async def _done(self, link: ServerLink) -> None:
        """Take over the user that the server says is logged in."""
        status = await link.command("admin", {"connectionStatus": 1})
        users = status["authInfo"]["authenticatedUsers"]
        if len(users) != 1:
            raise CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.")
        name = UserName(users[0]["user"], users[0]["db"])
        self._check_same(name)
        self._user, self.by_certificate = await self._access.users.get(name), False
        self._log.record_success(name.user, name.database)
        self.close()

    def _check_same(self, name: UserName) -> None:
        """Refuse a second login as another user; a connection has one user, as with mongos.

        A user that has been dropped is not logged in any more.
        """
        user = self.user
        if user is None or user.name == name:
            return
        raise CommandError(
            5626701,
            "Each client connection may only be authenticated once. Previously authenticated as: "
            f"{user.name}",
        )


_STEP_FIELDS = frozenset({"conversationId", "done", "payload", "ok"})
