"""The users of an embedded cluster, in memory."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from bson.binary import Binary
from bson.objectid import ObjectId
from scramp import ScramMechanism

from embedded.access.roles import EVERYTHING, Grant, grants_of
from embedded.errors import CommandError, ErrorCode
from embedded.storage.bson_values import Document
from shard_client.wire.authentication import MECHANISM, MEMBER, MEMBER_SOURCE

StoredPassword = tuple[bytes, bytes, bytes, int]
"""What a server stores instead of a password: salt, stored key, server key and iterations."""


class UserName(NamedTuple):
    """A user's name and the database that it belongs to."""

    user: str
    database: str

    def __str__(self) -> str:
        return f"{self.user}@{self.database}"


SERVERS = UserName(MEMBER, MEMBER_SOURCE)
"""The user as which the servers of a cluster log in to each other."""


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """A user with its password, its roles and all that they grant."""

    name: UserName
    id: Binary
    password: StoredPassword
    roles: list[Document]
    grants: tuple[Grant, ...]

    def described(self) -> dict[str, Any]:
        """Return the user as ``usersInfo`` shows it with its privileges."""
        return {
            "_id": f"{self.name.database}.{self.name.user}",
            "userId": self.id,
            "user": self.name.user,
            "db": self.name.database,
            "roles": self.roles,
            "mechanisms": [MECHANISM],
            "inheritedRoles": self.roles,
            "inheritedPrivileges": self.privileges(),
        }

    def privileges(self) -> list[Document]:
        """Return what the roles grant, as ``connectionStatus`` shows it."""
        return [grant.document() for grant in self.grants]


class Users:
    """The accounts by name; ``generation`` is a new id after each change.

    Args:
        key: the content of the key file, the password of the servers themselves; None without one.
    """

    def __init__(self, key: str | None) -> None:
        self.generation = ObjectId()
        self._accounts: dict[UserName, Account] = {}
        if key is not None:
            roles = [{"role": MEMBER, "db": MEMBER_SOURCE}]
            id_ = Binary(bytes(16), 4)
            self._accounts[SERVERS] = Account(SERVERS, id_, _stored(key), roles, EVERYTHING)

    @property
    def exist(self) -> bool:
        """Whether anybody has created a user."""
        return bool(self._accounts.keys() - {SERVERS})

    def get(self, name: UserName) -> Account | None:
        """Return a user's account, None if there is no such user."""
        return self._accounts.get(name)

    def listed(self, database: str) -> list[Account]:
        """Return the users that belong to a database."""
        return [account for name, account in self._accounts.items() if name.database == database]

    def create(self, name: UserName, id_: Binary, password: str, roles: list[Document]) -> None:
        """Create a user.

        Raises:
            CommandError: 51003 if the user exists.
        """
        if name in self._accounts:
            raise CommandError(51003, f'User "{name}" already exists')
        self._accounts[name] = Account(name, id_, _stored(password), roles, grants_of(roles))
        self.generation = ObjectId()

    def drop(self, name: UserName) -> None:
        """Drop a user, whose connections then count as not logged in.

        Raises:
            CommandError: 11 UserNotFound.
        """
        if self._accounts.pop(name, None) is None:
            raise CommandError(ErrorCode.UserNotFound, f"User '{name}' not found")
        self.generation = ObjectId()


def _stored(password: str) -> StoredPassword:
    stored: StoredPassword = ScramMechanism(MECHANISM).make_auth_info(password)
    return stored
