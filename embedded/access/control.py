"""Whether a client may run a command, and whether the cluster time that it sends is signed."""

import ipaddress
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import structlog
from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.access.logins import Logins
from embedded.access.privileges import CLUSTER, NOTHING, Privileges, Resource
from embedded.access.requirements import WITHOUT_LOGIN, WITHOUT_RIGHTS, requirements
from embedded.access.settings import Security
from embedded.access.signatures import unsigned
from embedded.access.users import Users, named_users
from embedded.clients import Client, UserName
from embedded.logical_clock import as_ordinal
from embedded.storage.bson_values import Document
from embedded.storage.shell_text import bson_text
from shard_client.errors import CommandError

log = structlog.get_logger()

_ON_SESSIONS = frozenset({"endSessions", "killSessions", "refreshSessions"})

_FIRST_USER = Privileges(
    {
        Resource("admin"): frozenset({"createUser", "grantRole"}),
        Resource("$external"): frozenset({"createUser", "grantRole"}),
        CLUSTER: frozenset({"addShard", "replSetConfigure", "replSetGetStatus"}),
    }
)
"""The rights of a client of the server's own machine while there are no users."""


class AccessControl:
    """The access to one server.

    Args:
        users: the accounts; the embedded mongos shares the config server's.
        security: how the cluster is secured.
    """

    def __init__(self, users: Users, security: Security) -> None:
        self.users = users
        self.security = security
        self.logins = Logins(users, security)
        self.enforced = security.authorization

    def check(self, name: str, database: str, command: Document, client: Client) -> None:
        """Check that a client has logged in, if the command takes that, and may run the command.

        Raises:
            CommandError: 13 Unauthorized.
        """
        self.check_login(name, client)
        self.check_rights(name, database, command, client)

    def check_login(self, name: str, client: Client) -> None:
        """Check that a client has logged in, if the command takes that.

        Raises:
            CommandError: 13 Unauthorized.
        """
        if name not in WITHOUT_LOGIN and self._privileges(client) is None:
            raise CommandError(
                13, f"command {name} requires authentication", code_name="Unauthorized"
            )

    def check_rights(self, name: str, database: str, command: Document, client: Client) -> None:
        """Check that a client that has logged in may run a command.

        Raises:
            CommandError: 13 Unauthorized.
        """
        if name in WITHOUT_LOGIN or name in WITHOUT_RIGHTS:
            return
        privileges = self._privileges(client) or NOTHING
        asked = requirements(name, database, {**command, "$db": database})
        if not all(privileges.allow(*each) for each in asked):
            raise self.refusal(database, command, client)

    def refusal(self, database: str, command: Document, client: Client) -> CommandError:
        """Return the error for a command that the client may not run."""
        text = bson_text({**command, "$db": database})
        log.info("Checking authorization failed", user=str(client.login.user), command=text[:1024])
        return CommandError(
            13, f"not authorized on {database} to execute command {text}", code_name="Unauthorized"
        )

    def allows(self, client: Client, resource: Resource, *actions: str) -> bool:
        """Return whether a client may take actions on a resource."""
        if not self.enforced or client.in_process:
            return True
        privileges = self._privileges(client)
        return privileges is not None and privileges.allow(resource, actions)

    def sees(self, client: Client, database: str) -> bool:
        """Return whether ``listDatabases`` shows a database to a client."""
        if self.allows(client, CLUSTER, "listDatabases"):
            return True
        privileges = self._privileges(client)
        return privileges is not None and privileges.any_in(database)

    def _privileges(self, client: Client) -> Privileges | None:
        """Return a client's privileges, None before the login."""
        account = self.logins.account(client)
        if account is not None:
            return account.privileges
        return _FIRST_USER if not self.users.exist and _is_local(client) else None

    def own_sessions(self, name: str, command: Document, client: Client) -> None:
        """Mark the sessions in a command as those of the client's user, by the user's digest."""
        user = client.login.user
        if user is None:
            return
        digest = Binary(sha256(str(user).encode()).digest())
        lsid = command.get("lsid")
        if isinstance(lsid, dict):
            command["lsid"] = {**lsid, "uid": digest}
        listed = command.get(name)
        if name in _ON_SESSIONS and isinstance(listed, list):
            command[name] = [
                {**each, "uid": digest} if isinstance(each, dict) else each for each in listed
            ]

    def check_owner(self, cursor_id: int, owner: UserName | None, client: Client) -> None:
        """Check that a cursor that a client reads is its user's.

        Raises:
            CommandError: 13 Unauthorized.
        """
        if self.enforced and not client.in_process and owner != client.login.user:
            raise CommandError(
                13,
                f"cursor id {cursor_id} was not created by the authenticated user :: caused by :: "
                "User not authorized to access cursor",
                code_name="Unauthorized",
            )

    def check_killing(
        self, owners: Iterable[UserName | None], database: str, command: Document, client: Client
    ) -> None:
        """Check that the cursors in a killCursors are those of the client's user.

        Raises:
            CommandError: 13 Unauthorized for a client that may not kill any cursor.
        """
        if not self.enforced or all(each == client.login.user for each in owners):
            return
        collection = Resource(database, str(command["killCursors"]))
        if not any(self.allows(client, each, "killAnyCursor") for each in (CLUSTER, collection)):
            raise self.refusal(database, command, client)

    def check_users_info(self, database: str, command: Document, client: Client) -> None:
        """Check that a client may see the users that ``usersInfo`` asks for; its own it may.

        Raises:
            CommandError: 13 Unauthorized; 2 BadValue if the command names no users.
        """
        if not self.enforced or client.in_process:
            return
        asked = command["usersInfo"]
        if isinstance(asked, int | float):
            databases = {database}
        elif isinstance(asked, dict) and asked.get("forAllDBs"):
            databases = {""}
        else:
            names = named_users(database, asked)
            databases = {name.database for name in names if name != client.login.user}
        if not all(self.allows(client, Resource(each), "viewUser") for each in databases):
            raise self.refusal(database, command, client)

    # Cluster times

    def check_time(self, given: Mapping[str, Any], newest: Timestamp, client: Client) -> None:
        """Check the signature of a client's ``$clusterTime``, if it is ahead of the server's.

        Raises:
            CommandError: 211 KeyNotFound, 204 TimeProofMismatch.
        """
        keys = self.security.keys
        if keys is None or as_ordinal(given["clusterTime"]) <= as_ordinal(newest):
            return
        if not self.allows(client, CLUSTER, "advanceClusterTime"):
            keys.check(given)

    def shown(self, time: Timestamp, client: Client) -> Document:
        """Return the ``$clusterTime`` of a reply to a client.

        Clients that may advance the clock get a dummy signature.
        """
        keys = self.security.keys
        if keys is None or self.allows(client, CLUSTER, "advanceClusterTime"):
            return unsigned(time)
        return keys.sign(time)


def _is_local(client: Client) -> bool:
    try:
        return ipaddress.ip_address(client.peer.rpartition(":")[0]).is_loopback
    except ValueError:
        return False
