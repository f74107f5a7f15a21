"""The built-in roles, with the actions of the commands that an embedded server has.

Source: MongoDB's manual, "Built-In Roles" (6.0). Actions on collections and features that embedded
servers do not have are left out, and so are the roles backup and restore.
"""

from collections.abc import Callable

from embedded.access.privileges import (
    ANYTHING,
    CLUSTER,
    EVERY_DATABASE,
    EVERYTHING,
    Privileges,
    Resource,
)

_READ = frozenset(
    {
        "changeStream", "collStats", "dbHash", "dbStats", "find", "killCursors",
        "listCollections", "listIndexes", "planCacheRead",
    }
)  # fmt: skip
_WRITE = _READ | frozenset(
    {
        "convertToCapped", "createCollection", "createIndex", "dropCollection", "dropIndex",
        "insert", "remove", "renameCollectionSameDB", "update",
    }
)  # fmt: skip
_ADMINISTER = frozenset(
    {
        "bypassDocumentValidation", "collMod", "collStats", "compact", "convertToCapped",
        "createCollection", "createIndex", "dbStats", "dropCollection",
        "dropDatabase", "dropIndex", "enableProfiler", "listCollections", "listIndexes",
        "planCacheIndexFilter", "planCacheRead", "planCacheWrite", "reIndex",
        "renameCollectionSameDB", "storageDetails", "validate",
    }
)  # fmt: skip
_USERS = frozenset(
    {
        "changeCustomData", "changePassword", "createRole", "createUser", "dropRole",
        "dropUser", "grantRole", "revokeRole", "setAuthenticationRestriction", "viewRole",
        "viewUser",
    }
)  # fmt: skip
_MONITOR = frozenset(
    {
        "connPoolStats", "getCmdLineOpts",
        "getDefaultRWConcern", "getLog", "getParameter", "getShardMap", "hostInfo",
        "inprog", "listDatabases", "listSessions", "listShards", "netstat",
        "operationMetrics", "replSetGetConfig", "replSetGetStatus", "serverStatus",
        "shardingState", "top",
    }
)  # fmt: skip
_MANAGE = frozenset(
    {
        "addShard", "appendOplogNote", "applicationMessage", "cleanupOrphaned",
        "flushRouterConfig", "getDefaultRWConcern", "listSessions", "listShards",
        "removeShard", "replSetConfigure", "replSetGetConfig", "replSetGetStatus",
        "replSetStateChange", "resync", "setDefaultRWConcern",
        "setFeatureCompatibilityVersion",
    }
)  # fmt: skip
_SHARD = frozenset(
    {
        "clearJumboFlag", "enableSharding", "moveChunk", "refineCollectionShardKey",
        "reshardCollection", "splitChunk", "splitVector",
    }
)  # fmt: skip
_HOST = frozenset(
    {
        "applicationMessage", "connPoolSync", "dropConnections",
        "flushRouterConfig", "fsync", "invalidateUserCache", "killAnyCursor",
        "killAnySession", "killop", "logRotate", "oidReset", "resync", "rotateCertificates",
        "setParameter", "shutdown", "touch", "unlock",
    }
)  # fmt: skip
_CHANGE = frozenset({"insert", "remove", "update"})
_STATISTICS = frozenset({"collStats", "dbStats", "indexStats"})


def _read(database: str) -> Privileges:
    return Privileges({Resource(database): _READ, Resource(database, "system.js"): _READ})


def _read_write(database: str) -> Privileges:
    return Privileges({Resource(database): _WRITE, Resource(database, "system.js"): _WRITE})


def _administer(database: str) -> Privileges:
    return Privileges({Resource(database): _ADMINISTER})


def _users_of(database: str) -> Privileges:
    return Privileges({Resource(database): _USERS})


def _owner(database: str) -> Privileges:
    return _read_write(database).joined((_administer(database), _users_of(database)))


_ON_ONE: dict[str, Callable[[str], Privileges]] = {
    "read": _read,
    "readWrite": _read_write,
    "dbAdmin": _administer,
    "userAdmin": _users_of,
    "dbOwner": _owner,
}
"""Roles that each database has."""

_EVERY_LISTED = Privileges({CLUSTER: frozenset({"listDatabases"})})
_CLUSTER_MONITOR = Privileges(
    {
        CLUSTER: _MONITOR,
        EVERY_DATABASE: _STATISTICS,
        Resource("config"): _READ | _STATISTICS,
        Resource("local"): _READ | _STATISTICS,
        Resource("", "system.profile"): frozenset({"find"}),
    }
)
_CLUSTER_MANAGER = Privileges(
    {
        CLUSTER: _MANAGE,
        EVERY_DATABASE: _SHARD,
        Resource("config"): _READ | _SHARD | _CHANGE,
        Resource("local"): _SHARD | _CHANGE,
    }
)
_HOST_MANAGER = Privileges({CLUSTER: _HOST, EVERY_DATABASE: frozenset({"killCursors"})})
_CLUSTER_ADMIN = Privileges({EVERY_DATABASE: frozenset({"dropDatabase"})}).joined(
    (_CLUSTER_MONITOR, _CLUSTER_MANAGER, _HOST_MANAGER)
)
_READ_ANY = _read("").joined([_EVERY_LISTED])
_READ_WRITE_ANY = _read_write("").joined([_EVERY_LISTED])
_ADMINISTER_ANY = _administer("").joined([_EVERY_LISTED])
_USERS_OF_ANY = Privileges(
    {
        CLUSTER: frozenset({"invalidateUserCache", "listDatabases", "viewUser"}),
        EVERY_DATABASE: _USERS,
        Resource("config"): _USERS,
        Resource("local"): _USERS,
        Resource("admin", "system.users"): _READ,
        Resource("admin", "system.roles"): _READ,
    }
)
_ROOT = Privileges(
    {ANYTHING: frozenset({"collStats", "listCollections", "listIndexes", "validate"})}
).joined((_READ_WRITE_ANY, _ADMINISTER_ANY, _USERS_OF_ANY, _CLUSTER_ADMIN))
_OF_ADMIN: dict[str, Privileges] = {
    "readAnyDatabase": _READ_ANY,
    "readWriteAnyDatabase": _READ_WRITE_ANY,
    "dbAdminAnyDatabase": _ADMINISTER_ANY,
    "userAdminAnyDatabase": _USERS_OF_ANY,
    "clusterMonitor": _CLUSTER_MONITOR,
    "clusterManager": _CLUSTER_MANAGER,
    "hostManager": _HOST_MANAGER,
    "clusterAdmin": _CLUSTER_ADMIN,
    "root": _ROOT,
    "__system": EVERYTHING,
}
"""Roles of the database admin."""


def builtin_privileges(role: str, database: str) -> Privileges | None:
    """Return the privileges of a database's built-in role; None if it has no such role."""
    if database == "admin" and role in _OF_ADMIN:
        return _OF_ADMIN[role]
    make = _ON_ONE.get(role)
    return None if make is None else make(database)
