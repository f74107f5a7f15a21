"""The users and roles of one server, read from its collections admin.system.users and .roles."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bson.objectid import ObjectId

from embedded.access.builtin_roles import builtin_privileges
from embedded.access.privileges import EVERYTHING, NOTHING, Privileges, parse_privileges
from embedded.access.scram import SHA_256, make_credentials
from embedded.clients import UserName
from embedded.errors import bad_value
from embedded.storage.bson_values import Document, id_key
from embedded.storage.catalog import Catalog

MEMBER = UserName("__system", "local")
"""The user as which the servers of a cluster log in to each other."""

USERS, ROLES = "admin.system.users", "admin.system.roles"


@dataclass(frozen=True, slots=True)
class Account:
    """A user with all that its roles give it.

    ``document`` is the one in admin.system.users. ``roles`` has inherited roles, too.
    """

    name: UserName
    document: Document
    roles: list[Document]
    privileges: Privileges

    @property
    def credentials(self) -> Mapping[str, Any]:
        """The user's credentials, by mechanism."""
        found: Mapping[str, Any] = self.document["credentials"]
        return found


class Users:
    """The accounts of one server; ``changed`` is to be called when a user or role has changed.

    ``generation`` is a new id after each change.

    Args:
        catalog: the server's collections.
        key: the content of the cluster's key file, the password of MEMBER; None without one.
    """

    def __init__(self, catalog: Catalog, key: str | None = None) -> None:
        self.generation = ObjectId()
        self._catalog = catalog
        self._accounts: dict[UserName, Account | None] = {}
        credentials = {} if key is None else make_credentials(MEMBER.user, key, [SHA_256])
        self._member = Account(
            MEMBER,
            {"user": MEMBER.user, "db": MEMBER.database, "credentials": credentials, "roles": []},
            [role_document("__system", MEMBER.database)],
            EVERYTHING,
        )

    @property
    def exist(self) -> bool:
        """Whether there is any user."""
        collection = self._catalog.get(USERS)
        return collection is not None and len(collection) > 0

    def changed(self) -> None:
        """Forget what was read of the collections."""
        self.generation = ObjectId()
        self._accounts.clear()

    def get(self, name: UserName) -> Account | None:
        """Return a user's account, None if there is no such user."""
        if name == MEMBER:
            return self._member
        if name not in self._accounts:
            document = self._read(USERS, name)
            self._accounts[name] = None if document is None else self._account(name, document)
        return self._accounts[name]

    def role(self, name: UserName) -> Document | None:
        """Return the document of a role that a user has created, None if there is none."""
        return self._read(ROLES, name)

    def roles_exist(self, roles: Iterable[Mapping[str, Any]]) -> UserName | None:
        """Return the first of the roles that does not exist, None if all do."""
        for each in roles:
            name = UserName(each["role"], each["db"])
            if builtin_privileges(*name) is None and self.role(name) is None:
                return name
        return None

    def inherited(self, roles: Iterable[Mapping[str, Any]]) -> tuple[list[Document], Privileges]:
        """Return all roles that these contain, themselves included, and their privileges."""
        found: dict[UserName, None] = {}
        privileges: list[Privileges] = []
        waiting = [UserName(each["role"], each["db"]) for each in roles]
        while waiting:
            name = waiting.pop(0)
            if name in found:
                continue
            found[name] = None
            builtin = builtin_privileges(*name)
            if builtin is not None:
                privileges.append(builtin)
                continue
            document = self.role(name)
            if document is not None:
                privileges.append(parse_privileges(document["privileges"]))
                waiting += [UserName(each["role"], each["db"]) for each in document["roles"]]
        listed = [role_document(name.user, name.database) for name in found]
        return listed, NOTHING.joined(privileges)

    def _account(self, name: UserName, document: Document) -> Account:
        return Account(name, document, *self.inherited(document["roles"]))

    def _read(self, namespace: str, name: UserName) -> Document | None:
        collection = self._catalog.get(namespace)
        if collection is None:
            return None
        return collection.get(id_key(document_id(name)))


def document_id(name: UserName) -> str:
    """Return the ``_id`` of a user or role."""
    return f"{name.database}.{name.user}"


def role_document(role: str, database: str) -> Document:
    """Return a role as it is listed."""
    return {"role": role, "db": database}


def named_users(database: str, asked: Any) -> list[UserName]:
    """Return the users that a ``usersInfo`` names.

    Raises:
        CommandError: 2 BadValue if it does not name users.
    """
    names = []
    for each in asked if isinstance(asked, list) else [asked]:
        if isinstance(each, str):
            names.append(UserName(each, database))
        elif isinstance(each, dict) and isinstance(each.get("user"), str):
            names.append(UserName(each["user"], str(each.get("db", database))))
        else:
            raise bad_value("User and role names must be either strings or objects")
    return names
