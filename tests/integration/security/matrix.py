"""The commands of the matrix of users and commands, and the part of an answer that is compared."""

import re
from typing import Any

from bson import Int64, ObjectId
from pymongo.errors import OperationFailure, PyMongoError

from tests.harness.clusters import Client
from tests.integration.security.clients import STREAM, stream

ROLES: dict[str, list[Any]] = {
    "own_any_action": [{"resource": {"anyResource": True}, "actions": ["anyAction"]}],
    "own_all_databases": [
        {"resource": {"db": "", "collection": ""}, "actions": ["changeStream", "find"]}
    ],
    "own_database": [
        {"resource": {"db": "db", "collection": ""}, "actions": ["changeStream", "find"]}
    ],
    "own_collection": [
        {"resource": {"db": "db", "collection": "c"}, "actions": ["changeStream", "find"]}
    ],
    "own_name": [{"resource": {"db": "", "collection": "c"}, "actions": ["changeStream", "find"]}],
    "own_half": [{"resource": {"db": "db", "collection": "c"}, "actions": ["find"]}],
    "own_cluster": [{"resource": {"cluster": True}, "actions": ["anyAction"]}],
}
"""Roles of users of the same name, with their privileges."""

BUILT_IN: dict[str, list[Any]] = {
    "reader": [{"role": "read", "db": "db"}],
    "everywhere": ["readAnyDatabase"],
    "writer": [{"role": "readWrite", "db": "db"}],
    "nobody": [],
    "monitor": ["clusterMonitor"],
    "admin": ["clusterAdmin"],
    "host": ["hostManager"],
    "users": ["userAdminAnyDatabase"],
    "owner": [{"role": "dbOwner", "db": "db"}],
    "backup": ["backup"],
}
"""Users with built-in roles."""

_WHOLE_CLUSTER = [{"$changeStream": {"allChangesForCluster": True}}]
_CURSOR = {"cursor": {}}

SPECIAL: list[tuple[str, dict[str, Any]]] = [
    *(("admin", {name: 1}) for name in ("hostinfo", "isdbGrid", "isdbgrid", "ISDBGRID", "nosuch")),
    *(("db", {name: 1}) for name in ("hostinfo", "isdbGrid", "whatsmyuri", "replSetGetStatus")),
    *(("admin", {"getLog": value}) for value in ("global", "*", "nosuch", 5, None)),
    ("db", {"getLog": "global"}),
    ("admin", {"getParameter": 1, "logLevel": 1}),
    ("admin", {"getParameter": "*"}),
    ("admin", {"setParameter": 1, "nosuch": 1}),
    ("admin", {"invalidateUserCache": 1}),
    ("db", {"invalidateUserCache": 1}),
    ("admin", {"connectionStatus": 1, "showPrivileges": True}),
    ("admin", {"endSessions": []}),
    ("admin", {"killSessions": []}),
    ("admin", {"refreshSessions": []}),
    ("db", {"getMore": Int64(5), "collection": "c"}),
    ("db", {"killCursors": "c", "cursors": [Int64(5)]}),
    *(
        (database, stream(target))
        for database in ("db", "other", "config", "local")
        for target in ("c", 1, "system.views", "$cmd.aggregate")
    ),
    ("admin", stream(1)),
    ("admin", stream(1, _WHOLE_CLUSTER)),
    ("admin", stream("c")),
    ("db", stream(1, _WHOLE_CLUSTER)),
    ("db", stream("c", [{"$changeStream": {"bad": 1}}])),
    ("other", stream("c", [{"$changeStream": {"bad": 1}}])),
    ("db", stream("c", [*STREAM, {"$group": {"_id": 1}}])),
    ("other", stream("c", bad=1)),
    ("db", {"aggregate": "c", "pipeline": STREAM}),
    ("db", {"aggregate": "c", "pipeline": [], **_CURSOR}),
    ("db", {"aggregate": "$cmd.aggregate", "pipeline": [], **_CURSOR}),
    ("db", {"aggregate": "c", "pipeline": [{"$out": "d"}, *STREAM], **_CURSOR}),
    *(
        ("db", {"explain": {**stream(target), **named}})
        for target in ("c", 1)
        for named in ({}, {"$db": "db"}, {"$db": "other"}, {"$db": 5})
    ),
    ("other", {"explain": stream("c")}),
    ("db", {"explain": {"aggregate": "c", "pipeline": [], **_CURSOR}}),
    *((name, {"insert": "c", "documents": [{"_id": ObjectId()}]}) for name in ("db", "other")),
    *((database, {"find": "c", "limit": 1}) for database in ("db", "other", "config")),
]
"""Commands with more than a name, on databases."""

_CHANGING = frozenset(
    {
        "balancerStart", "balancerStop", "clearLog", "configureFailPoint",
        "dropAllRolesFromDatabase", "dropAllUsersFromDatabase", "dropConnections",
        "dropDatabase", "fsync", "fsyncUnlock", "killAllSessions", "killAllSessionsByPattern",
        "logRotate", "logout", "multicast",
        "rotateCertificates", "shutdown", "sleep", "startRecordingTraffic", "stopRecordingTraffic",
        "waitForFailPoint",
    }
)  # fmt: skip
"""Commands that change the servers, or end connections and sessions."""


def commands_of(mongos: Client) -> list[tuple[str, dict[str, Any]]]:
    """Return every command of a mongos that changes nothing without arguments, on two databases."""
    listed = mongos.admin.command("listCommands")["commands"].keys() - _CHANGING
    names = sorted(name for name in listed if not name.startswith(("_", "test")))
    return [(database, {name: 1}) for name in names for database in ("admin", "db")] + SPECIAL


def outcome(connected: Client, database: str, command: dict[str, Any]) -> Any:
    """Return the code and the message of a command's answer, without what differs each time."""
    try:
        connected[database].command(dict(command))
    except OperationFailure as error:
        message = str((error.details or {}).get("errmsg"))
        message = re.sub(r",? ?(lsid|\$clusterTime|\$db): .*", "", message)
        return error.code, re.sub(r"\d{9,}|:\d{4,5}|[0-9a-f]{24,}", "…", message)
    except PyMongoError as error:
        return type(error).__name__
    return "ok"
