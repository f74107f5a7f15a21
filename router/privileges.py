"""A user's privileges, and whether they allow an action on a resource.

Source: MongoDB's authorization session (a resource matches the patterns that contain it); the
privileges are those that ``usersInfo`` with ``showPrivileges`` lists.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Resource(NamedTuple):
    """What an action acts on: a collection, a database, all databases, or the cluster.

    ``collection`` is empty for a whole database; ``database`` is also empty for all databases.
    ``cluster`` is set for the cluster itself, the resource of most administrative actions.
    """

    database: str = ""
    collection: str = ""
    cluster: bool = False


CLUSTER = Resource(cluster=True)
ALL_DATABASES = Resource()

_ANY = "any"
_ANY_ACTION = "anyAction"
_INTERNAL_DATABASES = ("config", "local")
"""Databases that a pattern for all databases does not contain."""
_SYSTEM = "system."

_Pattern = tuple[str, str] | Resource | str


@dataclass(frozen=True, slots=True)
class Privileges:
    """The actions that a user may take, by resource pattern."""

    granted: Mapping[_Pattern, frozenset[str]]

    @classmethod
    def of(cls, listed: Iterable[Mapping[str, Any]]) -> "Privileges":
        """Return the privileges in a list of ``{resource: {...}, actions: [...]}``.

        A malformed entry, or a resource of an unknown kind, grants nothing.
        """
        granted: dict[_Pattern, frozenset[str]] = {}
        for entry in listed:
            pattern = _pattern(entry.get("resource"))
            actions = entry.get("actions")
            if pattern is None or not isinstance(actions, list):
                continue
            granted[pattern] = granted.get(pattern, frozenset()) | {
                action for action in actions if isinstance(action, str)
            }
        return cls(granted)

    def allow(self, resource: Resource, *actions: str) -> bool:
        """Return whether all of the actions are allowed on the resource."""
        allowed: frozenset[str] = frozenset()
        for pattern in _matching(resource):
            allowed |= self.granted.get(pattern, frozenset())
        return _ANY_ACTION in allowed or allowed.issuperset(actions)

    def listed(self) -> list[dict[str, Any]]:
        """Return the privileges in the form of ``connectionStatus``."""
        return [
            {"resource": _document(pattern), "actions": sorted(actions)}
            for pattern, actions in self.granted.items()
        ]


def _document(pattern: "_Pattern") -> dict[str, Any]:
    if isinstance(pattern, str):
        return {"anyResource": True}
    if isinstance(pattern, Resource):
        return {"cluster": True}
    database, collection = pattern
    return {"db": database, "collection": collection}


NOTHING = Privileges({})
EVERYTHING = Privileges({_ANY: frozenset({_ANY_ACTION})})


def _pattern(resource: Any) -> _Pattern | None:
    if not isinstance(resource, Mapping):
        return None
    if resource.get("anyResource") is True:
        return _ANY
    if resource.get("cluster") is True:
        return CLUSTER
    if set(resource) != {"db", "collection"}:
        return None
    database, collection = resource["db"], resource["collection"]
    if isinstance(database, str) and isinstance(collection, str):
        return database, collection
    return None


def _matching(resource: Resource) -> Iterable[_Pattern]:
    """Yield the patterns that contain a resource."""
    yield _ANY
    if resource.cluster:
        yield CLUSTER
        return
    database, collection = resource.database, resource.collection
    # Patterns without a collection do not contain a database's own collections.
    if not collection.startswith(_SYSTEM):
        if database not in _INTERNAL_DATABASES:
            yield "", ""
        if database:
            yield database, ""
    if collection:
        yield "", collection
        yield database, collection


STREAM_ACTIONS = ("changeStream", "find")
"""The actions that a stream requires on its collection, its database or all databases."""

WHOLE = "$cmd.aggregate"
"""The collection in the namespace of a cursor on a whole database or the cluster."""


def stream_resource(database: str, collection: str | None) -> Resource:
    """Return the resource of a change stream; the database ``admin`` stands for the cluster."""
    if collection is not None:
        return Resource(database, collection)
    return ALL_DATABASES if database == "admin" else Resource(database)


class UserName(NamedTuple):
    """A user's name and the database that it belongs to."""

    user: str
    database: str

    def __str__(self) -> str:
        return f"{self.user}@{self.database}"


class User:
    """A user as all its connections see it.

    ``privileges`` and ``roles`` are replaced when they change; ``exists`` is cleared when the user
    has been dropped. Then its connections count as not logged in, as with mongos.
    """

    __slots__ = ("__weakref__", "exists", "name", "privileges", "roles", "user_id")

    def __init__(self, name: UserName) -> None:
        self.name = name
        self.privileges: Privileges = NOTHING
        self.roles: list[Any] = []
        self.exists = True
        self.user_id: Any = None

    def may_watch(self, namespace: str) -> bool:
        """Return whether the user may read the change stream of a cursor's namespace."""
        database, _, collection = namespace.partition(".")
        resource = stream_resource(database, None if collection == WHOLE else collection)
        return self.privileges.allow(resource, *STREAM_ACTIONS)

    def __str__(self) -> str:
        return str(self.name)
