"""The roles that users may have, and the right that each command takes.

Rights are coarser than MongoDB's: they are on whole databases or on the cluster.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from embedded.errors import CommandError
from embedded.storage.bson_values import Document

_ANY_ACTION = "anyAction"
_READ = frozenset(
    {"changeStream", "collStats", "dbStats", "find", "listCollections", "listIndexes"}
)
_WRITE = _READ | {
    "collMod", "createCollection", "createIndex", "dropCollection", "dropIndex", "insert",
    "remove", "update",
}  # fmt: skip
_MONITOR = frozenset(
    {
        "currentOp", "getCmdLineOpts", "getLog", "getParameter", "getShardMap", "hostInfo",
        "inprog", "listDatabases", "listShards", "serverStatus",
    }
)  # fmt: skip
_MANAGE = frozenset(
    {
        "addShard", "appendOplogNote", "enableSharding", "flushRouterConfig", "moveChunk",
        "movePrimary", "removeShard", "shardCollection", "split", "startShard",
    }
)  # fmt: skip
_ON_DATABASES = {
    **dict.fromkeys(("find", "count", "aggregate", "explain"), "find"),
    "update": "update",
    "insert": "insert",
    "delete": "remove",
    "create": "createCollection",
    "drop": "dropCollection",
    "dropDatabase": "dropDatabase",
    "createIndexes": "createIndex",
    "dropIndexes": "dropIndex",
    "collMod": "collMod",
    "listCollections": "listCollections",
    "listIndexes": "listIndexes",
    "collStats": "collStats",
    "dbStats": "dbStats",
}
"""The actions of commands on a database; every other command is an action on the cluster."""

WITHOUT_LOGIN = frozenset(
    {
        "hello", "isMaster", "ismaster", "saslStart", "saslContinue", "ping", "buildInfo",
        "buildinfo", "connectionStatus", "whatsmyuri", "isdbgrid", "listCommands",
    }
)  # fmt: skip
"""Commands that every client may run."""

_FOR_EVERY_USER = frozenset(
    {
        "logout", "startSession", "endSessions", "refreshSessions", "killSessions", "getMore",
        "killCursors", "commitTransaction", "abortTransaction", "listDatabases", "usersInfo",
        "getDefaultRWConcern",
    }
)  # fmt: skip


class Grant(NamedTuple):
    """Actions on a database, on every database but config and local (""), or on the cluster (None).

    ``anyAction`` includes all actions on everything.
    """

    database: str | None
    actions: frozenset[str]

    def document(self) -> Document:
        """Return the privilege as ``usersInfo`` lists it."""
        resource: Document = {"db": self.database, "collection": ""}
        if self.database is None:
            resource = {"anyResource" if _ANY_ACTION in self.actions else "cluster": True}
        return {"resource": resource, "actions": sorted(self.actions)}


EVERYTHING = (Grant(None, frozenset({_ANY_ACTION})),)
_OF_ADMIN: dict[str, tuple[Grant, ...]] = {
    "root": EVERYTHING,
    "readAnyDatabase": (Grant("", _READ),),
    "readWriteAnyDatabase": (Grant("", _WRITE),),
    "clusterMonitor": (Grant(None, _MONITOR), Grant("config", _READ)),
    "clusterAdmin": (Grant(None, _MONITOR | _MANAGE), Grant("config", _READ)),
    "hostManager": (Grant(None, frozenset({"setParameter", "fsync"})),),
}
_OF_DATABASES = {"read": _READ, "readWrite": _WRITE, "dbOwner": _WRITE | {"dropDatabase"}}


def parse_roles(database: str, listed: Iterable[Any]) -> list[Document]:
    """Return the roles in an argument, each as ``{role, db}``; a plain name is one of ``database``.

    Raises:
        CommandError: 31 RoleNotFound.
    """
    roles = []
    for item in listed:
        role = item if isinstance(item, Mapping) else {"role": item, "db": database}
        name, of = role.get("role"), role.get("db")
        if name not in _OF_DATABASES and (of != "admin" or name not in _OF_ADMIN):
            raise CommandError(31, f"Could not find role: {name}@{of}", code_name="RoleNotFound")
        roles.append({"role": name, "db": of})
    return roles


def grants_of(roles: Iterable[Document]) -> tuple[Grant, ...]:
    """Return all that roles grant."""
    grants: list[Grant] = []
    for role in roles:
        name = role["role"]
        grants += _OF_ADMIN.get(name) or (Grant(role["db"], _OF_DATABASES[name]),)
    return tuple(grants)


def may_run(grants: Iterable[Grant], name: str, database: str) -> bool:
    """Return whether a user with these grants may run the command ``name`` on ``database``."""
    if name in WITHOUT_LOGIN or name in _FOR_EVERY_USER:
        return True
    action = _ON_DATABASES.get(name)
    where: set[str | None] = {None} if action is None else {database}
    if action is not None and database not in ("config", "local"):
        where.add("")
    return any(
        _ANY_ACTION in grant.actions
        or (grant.database in where and (action or name) in grant.actions)
        for grant in grants
    )
