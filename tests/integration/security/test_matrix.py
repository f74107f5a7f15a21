"""Each user with each command: the router's answers are mongos's, in 18,000 cells."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bson import Int64, ObjectId

from tests.harness.clusters import Client, on_real_servers, start_cluster
from tests.harness.routers import start_router
from tests.harness.server_settings import ServerSettings
from tests.integration.security.clients import (
    STREAM,
    USERS,
    Servers,
    answer,
    client,
    start_routers,
    stream,
)

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
    **USERS,
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

pytestmark = on_real_servers("more than a few of the commands")


def commands_of(mongos: Client) -> list[tuple[str, dict[str, Any]]]:
    """Return every command of a mongos that changes nothing without arguments, on two databases."""
    listed = mongos.admin.command("listCommands")["commands"].keys() - _CHANGING
    names = sorted(name for name in listed if not name.startswith(("_", "test")))
    return [(database, {name: 1}) for name in names for database in ("admin", "db")] + SPECIAL


_UNKNOWN = 59
_NO_LONGER = 5739001
"""The code of getLastError and of other former commands."""
_UNAUTHORIZED = 13
_MALFORMED = (9, 40415)


@pytest.fixture(scope="module")
def servers(key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """A cluster of its own: so many refusals displace all else from the servers' logs."""
    settings = ServerSettings(noop_interval=1, key_file=key_file)
    with (
        start_cluster(2, settings=settings) as cluster,
        start_routers(cluster, key_file, tmp_path_factory.mktemp("matrix")) as started,
    ):
        yield started


@pytest.fixture(scope="module")
def addresses(servers: Servers, key_file: Path) -> Iterator[dict[str, str]]:
    """The addresses of a mongos and of routers, on a cluster with all users."""
    secured = servers.cluster
    admin = Client(secured.mongos_uri).admin
    for name, privileges in ROLES.items():
        admin.command("createRole", name, privileges=privileges, roles=[])
        admin.command("createUser", name, pwd=name, roles=[name])
    existing = {each["user"] for each in admin.command("usersInfo")["users"]}
    for name, roles in BUILT_IN.items():
        if name not in existing:
            admin.command("createUser", name, pwd=name, roles=roles)
    upstream = f"mongodb://{secured.mongos}/"
    parameters = {"authFailedDelayMs": 0}
    with start_router(
        secured.configdb, upstream, keyFile=key_file, workers=2, set_parameter=parameters
    ) as workers:
        yield {
            "mongos": servers.mongos,
            "upstream": servers.router,
            "alone": servers.alone,
            "workers": f"127.0.0.1:{workers.port}",
        }


@pytest.mark.parametrize("user", [None, "root", *ROLES, *BUILT_IN])
def test_each_command_gets_mongos_s_answer(addresses: dict[str, str], user: str | None) -> None:
    with ExitStack() as owned:
        clients = {
            name: owned.enter_context(client(address, user)) for name, address in addresses.items()
        }
        with Client(f"mongodb://root:root@{addresses['mongos']}") as r:
            commands = commands_of(r)
        mongos = clients.pop("mongos")
        differences = []
        for database, command in commands:
            expected = answer(mongos, database, command)
            for name, router in clients.items():
                answered = answer(router, database, command)
                if answered == expected or (name == "alone" and _deliberate(expected, answered)):
                    continue
                differences.append((name, database, command, expected, answered))
    assert len(commands) > 300
    assert not differences


def _deliberate(expected: Any, answered: Any) -> bool:
    """Return whether a router without an upstream may differ so (docs/security.md)."""
    code, message = answered
    if code == _UNKNOWN or message.startswith("mergerouter does not serve"):
        return True
    if expected[0] in _MALFORMED and code == _UNAUTHORIZED:  # rights are checked first
        return True
    # Before the login, the router tells nobody which commands it does not know.
    needs_login = code == _UNAUTHORIZED and message.endswith("requires authentication")
    refusals = (_UNAUTHORIZED, _UNKNOWN, _NO_LONGER)
    return bool(needs_login and (expected == "ok" or expected[0] in refusals))
