"""Logins on one server: SASL conversations, certificates, logout, and who is logged in."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import structlog
from bson.binary import Binary

from embedded.access.arguments import (
    anything,
    document,
    missing,
    parse,
    payload,
    text,
    whole_number,
    wrong_type,
)
from embedded.access.scram import MECHANISMS, Exchange, RefusedLoginError
from embedded.access.settings import Security
from embedded.access.users import MEMBER, Account, Users
from embedded.clients import Client, UserName
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError
from shard_client.wire.authentication import EXTERNAL, X509

log = structlog.get_logger()


class _Conversation:
    """A SASL conversation: one message each way, the proofs, and an empty exchange if asked for."""

    def __init__(self, users: Users, database: str, arguments: Mapping[str, Any]) -> None:
        self.mechanism = str(arguments["mechanism"])
        self.database = database
        self.proved = False
        self._skips_empty_exchange = bool(arguments.get("options", {}).get("skipEmptyExchange"))
        self._users = users
        if self.mechanism not in MECHANISMS:
            raise _unavailable(
                f"Received authentication for mechanism {self.mechanism} which is not enabled"
            )
        if database == EXTERNAL:
            raise _unavailable(
                f"Unsupported mechanism '{self.mechanism}' on authentication database '{EXTERNAL}'"
            )
        self.exchange = Exchange(self.mechanism, self._credentials)

    @property
    def name(self) -> UserName:
        """The user that wants to log in."""
        return UserName(self.exchange.user, self.database)

    def _credentials(self, user: str) -> Mapping[str, Any] | None:
        account = self._users.get(UserName(user, self.database))
        return None if account is None else account.credentials.get(self.mechanism)

    def step(self, message: bytes, *, begins: bool) -> Document:
        """Answer one message; raises RefusedLoginError."""
        done = False
        if begins:
            answer = self.exchange.first(message)
        elif not self.proved:
            answer = self.exchange.final(message)
            self.proved = True
            done = self._skips_empty_exchange
        elif message:
            raise RefusedLoginError("the conversation has ended")
        else:
            answer, done = b"", True
        return {"conversationId": 1, "done": done, "payload": Binary(answer)}


class Logins:
    """The commands with which clients log in to one server.

    Args:
        users: the accounts.
        security: how the cluster is secured.
    """

    def __init__(self, users: Users, security: Security) -> None:
        self._users = users
        self._security = security

    def start(self, client: Client, database: str, command: Mapping[str, Any]) -> Document:
        """Answer saslStart.

        Raises:
            CommandError: the command is malformed; 334 for an unknown mechanism; 18 for a user
                that does not exist or a message that is not SCRAM's.
        """
        client.login.conversation = None
        arguments = parse(
            command,
            "saslStart",
            {"mechanism": text, "payload": payload},
            options=document,
            autoAuthorize=anything,
        )
        conversation = _Conversation(self._users, database, arguments)
        return self._step(client, conversation, arguments["payload"], begins=True)

    def go_on(self, client: Client, database: str, command: Mapping[str, Any]) -> Document:
        """Answer saslContinue.

        Raises:
            CommandError: the command is malformed; 17 if there is no such conversation; 18 if the
                client does not prove that it knows the password.
        """
        required = {"conversationId": whole_number, "payload": payload}
        arguments = parse(command, "saslContinue", required)
        conversation, client.login.conversation = client.login.conversation, None
        if conversation is None:
            raise _protocol_error("No SASL session state found")
        if arguments["conversationId"] != 1:
            raise _protocol_error("sasl: Mismatched conversation id")
        if conversation.database != database:
            raise _protocol_error("Attempt to switch database target during SASL authentication.")
        return self._step(client, conversation, arguments["payload"], begins=False)

    def _step(
        self, client: Client, conversation: _Conversation, message: bytes, *, begins: bool
    ) -> Document:
        try:
            reply = conversation.step(message, begins=begins)
        except RefusedLoginError as refusal:
            self._refuse(client, conversation.name, conversation.mechanism, str(refusal))
        if reply["done"]:
            self._succeed(client, conversation.name, conversation.mechanism)
        else:
            client.login.conversation = conversation
        return reply

    def authenticate(self, client: Client, database: str, command: Mapping[str, Any]) -> Document:
        """Log a client in with its certificate (MONGODB-X509).

        Raises:
            CommandError: the command is malformed; 18 if there is no certificate, or one of a
                member; 11 UserNotFound.
        """
        if command.get("mechanism") is None:
            raise missing("authenticate", "mechanism")
        mechanism = text("authenticate.mechanism", command["mechanism"])
        if mechanism != X509:
            raise CommandError(2, f"Unsupported mechanism: {mechanism}", code_name="BadValue")
        if database != EXTERNAL:
            raise _protocol_error("X.509 authentication must always use the $external database.")
        certificate = client.login.certificate
        if certificate is None or not certificate.subject:
            raise _refusal("No verified subject name available from client")
        subject = certificate.subject
        if command.get("user", subject) != subject:
            raise _refusal("There is no x.509 client certificate matching the user.")
        tls = self._security.tls
        name = UserName(subject, EXTERNAL)
        if tls is not None and tls.own.membership and certificate.membership == tls.own.membership:
            if not self._security.by_certificate:
                raise _refusal(
                    "The provided certificate can only be used for cluster authentication, not "
                    "client authentication. The current configuration does not allow x.509 "
                    "cluster authentication, check the --clusterAuthMode flag"
                )
            name = MEMBER
        elif self._users.get(name) is None:
            raise CommandError(11, f'User "{name}" not found', code_name="UserNotFound")
        self._succeed(client, name, mechanism)
        return {"dbname": EXTERNAL, "user": subject}

    def log_out(self, client: Client, database: str) -> Document:
        """End the login of a user of ``database``."""
        login = client.login
        login.conversation = None
        if login.user is not None and login.user.database == database:
            login.user = login.user_id = None
        return {}

    def hello(self, client: Client, command: Mapping[str, Any]) -> Document:
        """Return what a hello's reply says about logins.

        A speculative login that fails leaves no trace in it.

        Raises:
            CommandError: a field is malformed.
        """
        reply: Document = {}
        named = command.get("saslSupportedMechs")
        if named is not None:
            reply.update(self._mechanisms(named))
        speculative = command.get("speculativeAuthenticate")
        if speculative is None:
            return reply
        document("hello.speculativeAuthenticate", speculative)
        begun = next(iter(speculative), "")
        answer = {"saslStart": self.start, "authenticate": self.authenticate}.get(begun)
        if answer is None:
            raise CommandError(51769, f"hello.speculativeAuthenticate unknown command: {begun}")
        fields = {name: value for name, value in speculative.items() if name != "db"}
        with suppress(CommandError):
            database = text("hello.speculativeAuthenticate.db", speculative.get("db"))
            reply["speculativeAuthenticate"] = answer(client, database, fields)
        return reply

    def _mechanisms(self, named: Any) -> Document:
        if not isinstance(named, str):
            raise wrong_type("hello.saslSupportedMechs", named, "types '[string, object']")
        database, dot, user = named.partition(".")
        if not dot:
            raise CommandError(
                2, "UserName must contain a '.' separated database.user pair", code_name="BadValue"
            )
        account = self._users.get(UserName(user, database))
        if account is None:
            return {}
        mechanisms = [X509] if database == EXTERNAL else list(account.credentials)
        return {"saslSupportedMechs": mechanisms}

    def account(self, client: Client) -> Account | None:
        """Return the account of the user that is logged in; None if no user is.

        A user that has been dropped is not logged in any more.
        """
        login = client.login
        if login.user is None:
            return None
        account = self._users.get(login.user)
        if account is None or account.document.get("userId") != login.user_id:
            return None
        return account

    def status(self, client: Client, command: Mapping[str, Any]) -> Document:
        """Answer connectionStatus."""
        account = self.account(client)
        info: Document = {"authenticatedUsers": [], "authenticatedUserRoles": []}
        if account is not None:
            info["authenticatedUsers"].append(
                {"user": account.name.user, "db": account.name.database}
            )
            info["authenticatedUserRoles"] = account.roles
        if command.get("showPrivileges"):
            listed = [] if account is None else account.privileges.listed()
            info["authenticatedUserPrivileges"] = listed
        return {"authInfo": info}

    def _succeed(self, client: Client, name: UserName, mechanism: str) -> None:
        login = client.login
        if login.user not in (None, name) and self.account(client) is not None:
            raise CommandError(
                5626701,
                "Each client connection may only be authenticated once. Previously authenticated "
                f"as: {login.user}",
                code_name="Location5626701",
            )
        account = self._users.get(name)
        assert account is not None
        login.user, login.user_id = name, account.document.get("userId")
        log.info("Authentication succeeded", user=str(name), mechanism=mechanism, peer=client.peer)

    @staticmethod
    def _refuse(client: Client, name: UserName, mechanism: str, reason: str) -> NoReturn:
        log.info(
            "Authentication failed",
            user=str(name),
            mechanism=mechanism,
            peer=client.peer,
            error=reason,
        )
        raise _refusal("Authentication failed.")


def _refusal(message: str) -> CommandError:
    return CommandError(18, message, code_name="AuthenticationFailed")


def _unavailable(message: str) -> CommandError:
    return CommandError(334, message, code_name="MechanismUnavailable")


def _protocol_error(message: str) -> CommandError:
    return CommandError(17, message, code_name="ProtocolError")
