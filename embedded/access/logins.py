"""Logins with a password: SASL conversations, logout, and who is logged in."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import structlog
from bson.binary import Binary

from embedded.access.scram import Exchange, RefusedLoginError, StoredPassword
from embedded.access.users import Account, UserName, Users
from embedded.clients import Client
from embedded.errors import CommandError, ErrorCode
from embedded.storage.bson_values import Document
from shard_client.wire.authentication import MECHANISM

log = structlog.get_logger()


class _Conversation:
    """A SASL conversation of a client that logs in as a user of one database."""

    def __init__(self, users: Users, database: str, command: Mapping[str, Any]) -> None:
        self._users = users
        self._database = database
        skips = bool((command.get("options") or {}).get("skipEmptyExchange"))
        self.exchange = Exchange(self._password, skips_empty=skips)

    @property
    def name(self) -> UserName:
        """The user that wants to log in."""
        return UserName(self.exchange.user, self._database)

    def _password(self, user: str) -> StoredPassword | None:
        account = self._users.get(UserName(user, self._database))
        return None if account is None else account.password


class Logins:
    """The commands with which clients log in to a cluster with these users."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def start(self, client: Client, database: str, command: Mapping[str, Any]) -> Document:
        """Answer saslStart.

        Raises:
            CommandError: 334 for another mechanism than SCRAM-SHA-256; 18 for a user that does not
                exist or a message that is not SCRAM's.
        """
        if command.get("mechanism") != MECHANISM:
            raise CommandError(
                ErrorCode.MechanismUnavailable,
                f"Received authentication for mechanism {command.get('mechanism')} which is not "
                "enabled",
            )
        client.conversation = _Conversation(self._users, database, command)
        return self.go_on(client, {**command, "conversationId": 1})

    def go_on(self, client: Client, command: Mapping[str, Any]) -> Document:
        """Answer saslContinue.

        Raises:
            CommandError: 17 if there is no such conversation; 18 if the client does not prove that
                it knows the password.
        """
        conversation, client.conversation = client.conversation, None
        if conversation is None or command.get("conversationId") != 1:
            raise CommandError(ErrorCode.ProtocolError, "No SASL session state found")
        try:
            answer, done = conversation.exchange.step(bytes(command["payload"]))
        except (RefusedLoginError, KeyError, TypeError) as refusal:
            log.info("Authentication failed", user=str(conversation.name), error=str(refusal))
            raise CommandError(ErrorCode.AuthenticationFailed, "Authentication failed.") from None
        if done:
            client.account = self._users.get(conversation.name)
            log.info("Authentication succeeded", user=str(conversation.name), peer=client.peer)
        else:
            client.conversation = conversation
        return {"conversationId": 1, "done": done, "payload": Binary(answer)}

    def log_out(self, client: Client) -> Document:
        """End the login."""
        client.account = client.conversation = None
        return {}

    def hello(self, client: Client, command: Mapping[str, Any]) -> Document:
        """Return what a hello's reply says about logins.

        A speculative login that fails leaves no trace in it.
        """
        reply: Document = {}
        if isinstance(named := command.get("saslSupportedMechs"), str):
            database, _, user = named.partition(".")
            if self._users.get(UserName(user, database)) is not None:
                reply["saslSupportedMechs"] = [MECHANISM]
        speculative = command.get("speculativeAuthenticate")
        if isinstance(speculative, Mapping) and "saslStart" in speculative:
            with suppress(CommandError):
                started = self.start(client, str(speculative.get("db")), speculative)
                reply["speculativeAuthenticate"] = started
        return reply

    def account(self, client: Client) -> Account | None:
        """Return the account of the user that is logged in; None if none is, or it was dropped."""
        account: Account | None = client.account
        return account if account and self._users.get(account.name) is account else None

    def status(self, client: Client, command: Mapping[str, Any]) -> Document:
        """Answer connectionStatus."""
        account = self.account(client)
        info: Document = {"authenticatedUsers": [], "authenticatedUserRoles": []}
        if account is not None:
            info["authenticatedUsers"] = [{"user": account.name.user, "db": account.name.database}]
            info["authenticatedUserRoles"] = account.roles
        if command.get("showPrivileges"):
            info["authenticatedUserPrivileges"] = [] if account is None else account.privileges()
        return {"authInfo": info}
