"""The embedded cluster with a key file answers logins and checks rights as real servers do."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo.errors import OperationFailure

from tests.harness.clusters import Client, EmbeddedProcess, TestCluster
from tests.harness.raw_client import RawClient
from tests.harness.server_settings import ServerSettings
from tests.integration.security.clients import (
    OPENS_NO_STREAMS,
    USERS,
    Servers,
    answer,
    client,
    port_of,
)
from tests.integration.security.test_login_sequences import answers, steps
from tests.integration.security.test_logins import COMPARED, HANDSHAKE
from tests.integration.security.test_rights import COMMANDS

READ_DB = {"role": "read", "db": "db"}
CREATED: dict[str, Any] = {"createUser": "made", "pwd": "p", "roles": []}
USER_COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("admin", CREATED),
    ("admin", CREATED),
    ("admin", {"createUser": "other", "roles": []}),
    ("admin", {"createUser": "other", "pwd": "p"}),
    ("admin", {"createUser": "other", "pwd": "p", "roles": ["nosuch"]}),
    ("admin", {"createUser": "", "pwd": "p", "roles": []}),
    ("admin", {"createUser": "other", "pwd": "p", "roles": [5]}),
    ("admin", {"createUser": "other", "pwd": "p", "roles": [], "mechanisms": ["PLAIN"]}),
    ("local", {"createUser": "other", "pwd": "p", "roles": []}),
    ("admin", {"grantRolesToUser": "made", "roles": [READ_DB]}),
    ("admin", {"grantRolesToUser": "made", "roles": [READ_DB]}),
    ("admin", {"grantRolesToUser": "nosuch", "roles": [READ_DB]}),
    ("admin", {"revokeRolesFromUser": "made", "roles": [READ_DB]}),
    ("admin", {"revokeRolesFromUser": "made", "roles": ["nosuch"]}),
    ("admin", {"updateUser": "made"}),
    ("admin", {"updateUser": "made", "pwd": "q"}),
    ("admin", {"updateUser": "nosuch", "pwd": "q"}),
    ("admin", {"createRole": "mine", "privileges": [], "roles": [READ_DB]}),
    ("admin", {"createRole": "mine", "privileges": [], "roles": []}),
    ("admin", {"createRole": "root", "privileges": [], "roles": []}),
    ("admin", {"grantRolesToUser": "made", "roles": ["mine"]}),
    ("admin", {"dropRole": "mine"}),
    ("admin", {"dropRole": "mine"}),
    ("admin", {"dropUser": "made"}),
    ("admin", {"dropUser": "made"}),
]


@pytest.fixture(scope="module")
def embedded(secured: TestCluster, key_file: Any) -> Iterator[TestCluster]:
    """An embedded cluster with the users of the real one."""
    if not secured.real:
        pytest.skip("compares the embedded cluster with real servers")
    with EmbeddedProcess(2, {"settings": ServerSettings(1, key_file=key_file)}) as cluster:
        with client(cluster.mongos, "root") as root:
            for user, roles in USERS.items():
                root.admin.command("createUser", user, pwd=user, roles=roles)
            for database in ("db", "other"):
                root[database].c.insert_one({})
        yield cluster


@pytest.mark.parametrize("user", [None, "root", *USERS])
def test_commands_by_role(servers: Servers, embedded: TestCluster, user: str | None) -> None:
    with client(servers.mongos, user) as real, client(embedded.mongos, user) as imitated:
        expected = [answer(real, *each) for each in COMMANDS]
        found = [answer(imitated, *each) for each in COMMANDS]
    for number, given_answer in enumerate(found):
        if given_answer == OPENS_NO_STREAMS and expected[number][0] != 13:
            found[number] = expected[number]
    assert dict(zip(map(str, COMMANDS), found, strict=True)) == dict(
        zip(map(str, COMMANDS), expected, strict=True)
    )


def test_commands_on_users(servers: Servers, embedded: TestCluster) -> None:
    with client(servers.mongos, "root") as real, client(embedded.mongos, "root") as imitated:
        expected = [answer(real, *each) for each in USER_COMMANDS]
        assert [answer(imitated, *each) for each in USER_COMMANDS] == expected


@pytest.mark.parametrize("server", ["mongos", "config"])
async def test_logins(servers: Servers, embedded: TestCluster, server: str) -> None:
    found = []
    for cluster in (servers.cluster, embedded):
        address = cluster.mongos if server == "mongos" else cluster.configdb
        async with await RawClient.connect(port_of(address)) as raw:
            replies = [await raw.command(*each) for each in HANDSHAKE]
        for each in replies:
            each.get("saslSupportedMechs", []).sort()
        found.append([{name: each.get(name) for name in COMPARED} for each in replies])
    assert found[1] == found[0]


def test_any_sequence_of_login_steps(servers: Servers, embedded: TestCluster) -> None:
    ports = [port_of(servers.mongos), port_of(embedded.mongos)]

    @settings(
        max_examples=150,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(steps, min_size=1, max_size=5))
    def compare(sequence: list[tuple[str, dict[str, Any]]]) -> None:
        async def both() -> list[list[Any]]:
            return [await answers(port, sequence) for port in ports]

        of_real, of_embedded = asyncio.run(both())
        assert of_embedded == of_real

    compare()


@pytest.mark.parametrize("user", [None, "reader", "root"])
def test_privileges(servers: Servers, embedded: TestCluster, user: str | None) -> None:
    """The actions that embedded servers know are on the same resources."""
    found = []
    for address in (servers.mongos, embedded.mongos):
        with client(address, user) as connected:
            status = connected.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        found.append(status)
    for name in ("authenticatedUsers", "authenticatedUserRoles"):
        assert found[1][name] == found[0][name]
    real, imitated = (
        {
            str(each["resource"]): set(each["actions"])
            for each in status["authenticatedUserPrivileges"]
        }
        for status in found
    )
    for resource, actions in imitated.items():
        assert actions <= real[resource], resource


def test_times(servers: Servers, embedded: TestCluster) -> None:
    """Clients get signed times, members and users that may advance the clock dummies."""
    found = []
    for cluster in (servers.cluster, embedded):
        replies = []
        for user in (None, "reader", "root"):
            with client(cluster.mongos, user) as connected:
                replies.append(connected.admin.command("ping"))
        for name in ("shard0", "config"):
            with cluster.direct(name) as connected:
                replies.append(connected.admin.command("ping"))
        found.append(["$clusterTime" in each and is_signed(each) for each in replies])
    assert found[1] == found[0]


def is_signed(reply: dict[str, Any]) -> bool:
    return reply["$clusterTime"]["signature"]["keyId"] != 0


def test_cursors_of_other_users(servers: Servers, embedded: TestCluster) -> None:
    found = []
    for address in (servers.mongos, embedded.mongos):
        with client(address, "root") as root, client(address, "reader") as reader:
            root.db.many.drop()
            root.db.many.insert_many([{"_id": number} for number in range(9)])
            opened = root.db.command("find", "many", batchSize=2)["cursor"]["id"]
            getting = {"getMore": opened, "collection": "many", "batchSize": 2}
            killing = {"killCursors": "many", "cursors": [opened]}
            found.append(
                [
                    re.sub(r"\d{9,}|[0-9a-f]{8}-[0-9a-f-]{27}", "ID", str(each))
                    for each in (
                        answer(reader, "db", getting),
                        answer(reader, "db", killing),
                        answer(root, "db", killing),
                    )
                ]
            )
    assert found[1] == found[0]


def test_dropped_users_are_logged_out(servers: Servers, embedded: TestCluster) -> None:
    found = []
    for address in (servers.mongos, embedded.mongos):
        with client(address, "root") as root:
            root.admin.command("createUser", "leaver", pwd="leaver", roles=["readAnyDatabase"])
            with client(address, "leaver", maxPoolSize=1) as leaver:
                before = answer(leaver, "db", {"find": "c"})
                root.admin.command("dropUser", "leaver")
                found.append([before, answer(leaver, "db", {"find": "c"})])
    assert found[1] == found[0]


def test_databases_are_listed_by_rights(servers: Servers, embedded: TestCluster) -> None:
    found = []
    for address in (servers.mongos, embedded.mongos):
        names = []
        for user in ("reader", "nobody", "everywhere"):
            with client(address, user) as connected:
                names.append(set(listed(connected)) & {"db", "other", "admin", "config"})
        found.append(names)
    assert found[1] == found[0]


def listed(connected: Client) -> list[str]:
    try:
        return connected.list_database_names()
    except OperationFailure as error:
        return [str(error.code)]
