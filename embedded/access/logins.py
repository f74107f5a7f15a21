"""Logins with a password: SCRAM-SHA-256 conversations (RFC 7677)."""

from collections.abc import Mapping
from typing import Any

import structlog
from bson.binary import Binary
from scramp import ScramException, ScramMechanism

from embedded.access.users import StoredPassword, UserName, Users
from embedded.client import Client
from embedded.errors import CommandError, ErrorCode
from embedded.storage.bson_values import Document
from shard_client.wire.authentication import MECHANISM

log = structlog.get_logger()


class Login:
    """A login: two messages of the client, each with an answer, and an empty one if asked for.

    Args:
        users: who may log in.
        database: the database that the client's user belongs to.
        skips_empty: whether the client wants no empty message at the end.
    """

    def __init__(self, users: Users, database: str, *, skips_empty: bool) -> None:
        self._users = users
        self._skips_empty = skips_empty
        self._server = ScramMechanism(MECHANISM).make_server(self._password)
        self._messages = 0
        self.name = UserName("", database)
        """The user that the client names in its first message."""

    def step(self, payload: Any) -> tuple[bytes, bool]:
        """Return the answer to the next message, and whether the client is then logged in.

        Raises:
            CommandError: 18 if the client does not prove that it knows the password of a user, or
                if its message is malformed.
        """
        self._messages += 1
        try:
            if self._messages == 1:
                self._server.set_client_first(bytes(payload).decode())
                return str(self._server.get_server_first()).encode(), False
            if self._messages == 2:
                self._server.set_client_final(bytes(payload).decode())
                return str(self._server.get_server_final()).encode(), self._skips_empty
        except (ScramException, LookupError, TypeError, ValueError) as error:
            log.info("Authentication failed", user=str(self.name), error=str(error))
            raise CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.") from None
        return b"", True

    def _password(self, user: str) -> StoredPassword | None:
        self.name = self.name._replace(user=user)
        account = self._users.get(self.name)
        return None if account is None else account.password


def start(users: Users, client: Client, database: str, command: Mapping[str, Any]) -> Document:
    """Answer a client's saslStart.

    Raises:
        CommandError: 334 for another mechanism than SCRAM-SHA-256; 18, see ``Login.step``.
    """
    if command.get("mechanism") != MECHANISM:
        raise CommandError(
            ErrorCode.MechanismUnavailable,
            f"Received authentication for mechanism {command.get('mechanism')} which is not "
            "enabled",
        )
    skips = bool((command.get("options") or {}).get("skipEmptyExchange"))
    client.login = Login(users, database, skips_empty=skips)
    return go_on(users, client, {**command, "conversationId": 1})


def go_on(users: Users, client: Client, command: Mapping[str, Any]) -> Document:
    """Answer a client's saslContinue.

    Raises:
        CommandError: 17 if no login is in progress; 18, see ``Login.step``.
    """
    login, client.login = client.login, None
    if login is None or command.get("conversationId") != 1:
        raise CommandError(ErrorCode.ProtocolError, "No SASL session state found")
    answer, is_done = login.step(command.get("payload"))
    if is_done:
        client.account = users.get(login.name)
        log.info("Authentication succeeded", user=str(login.name), peer=client.peer)
    else:
        client.login = login
    return {"conversationId": 1, "done": is_done, "payload": Binary(answer)}
