"""Privileges: which actions a user may take on which resource.

Source: MongoDB's manual, "Resource Document"; a resource matches every pattern that contains it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from embedded.storage.bson_values import Document


class Resource(NamedTuple):
    """A collection, a database, all databases, or the cluster.

    ``collection`` is empty for a whole database, ``database`` too for all databases. As a pattern,
    an empty part stands for every name; patterns without a collection leave out those called
    ``system.*``, and the pattern of all databases leaves out config and local. ``any`` is the
    pattern of everything.
    """

    database: str = ""
    collection: str = ""
    cluster: bool = False
    any: bool = False

    def document(self) -> Document:
        """Return the resource as ``usersInfo`` lists it."""
        if self.any:
            return {"anyResource": True}
        if self.cluster:
            return {"cluster": True}
        return {"db": self.database, "collection": self.collection}


CLUSTER = Resource(cluster=True)
EVERY_DATABASE = Resource()
ANYTHING = Resource(any=True)


@dataclass(frozen=True, slots=True)
class Privileges:
    """Actions by the pattern of the resources on which they are allowed."""

    granted: Mapping[Resource, frozenset[str]] = field(default_factory=dict)

    def allow(self, resource: Resource, actions: Iterable[str]) -> bool:
        """Return whether all of the actions are allowed on the resource."""
        allowed = self.granted.get(ANYTHING, frozenset())
        if "anyAction" in allowed:
            return True
        for pattern in _patterns(resource):
            allowed |= self.granted.get(pattern, frozenset())
        return allowed.issuperset(actions)

    def any_in(self, database: str) -> bool:
        """Return whether any action is allowed on anything in the database."""
        return any(
            pattern.any or (not pattern.cluster and pattern.database in ("", database))
            for pattern in self.granted
        )

    def listed(self) -> list[Document]:
        """Return the privileges as ``usersInfo`` lists them."""
        return [
            {"resource": pattern.document(), "actions": sorted(actions)}
            for pattern, actions in self.granted.items()
        ]

    def joined(self, others: Iterable["Privileges"]) -> "Privileges":
        """Return these privileges and others together."""
        granted = dict(self.granted)
        for other in others:
            for pattern, actions in other.granted.items():
                granted[pattern] = granted.get(pattern, frozenset()) | actions
        return Privileges(granted)


NOTHING = Privileges()
EVERYTHING = Privileges({ANYTHING: frozenset({"anyAction"})})


def parse_privileges(listed: Iterable[Mapping[str, Any]]) -> Privileges:
    """Return the privileges of a list of ``{resource, actions}``.

    Raises:
        ValueError: an entry has another form.
    """
    granted: dict[Resource, frozenset[str]] = {}
    for entry in listed:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("actions"), list):
            raise ValueError("a privilege needs a resource and a list of actions")
        pattern = _parsed(entry.get("resource"))
        granted[pattern] = granted.get(pattern, frozenset()) | frozenset(map(str, entry["actions"]))
    return Privileges(granted)


def _parsed(resource: Any) -> Resource:
    if isinstance(resource, Mapping):
        if resource.get("anyResource") is True:
            return ANYTHING
        if resource.get("cluster") is True:
            return CLUSTER
        database, collection = resource.get("db"), resource.get("collection")
        if isinstance(database, str) and isinstance(collection, str):
            return Resource(database, collection)
    raise ValueError(f"{resource!r} is not a resource")


def _patterns(resource: Resource) -> Iterable[Resource]:
    """Yield the patterns that contain a resource."""
    if resource.cluster:
        yield CLUSTER
        return
    database, collection = resource.database, resource.collection
    if not collection.startswith("system."):
        if database not in ("config", "local"):
            yield EVERY_DATABASE
        if database:
            yield Resource(database)
    if collection:
        yield Resource("", collection)
        yield Resource(database, collection)
