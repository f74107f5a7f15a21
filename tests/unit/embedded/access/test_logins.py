"""Logins on an embedded member, and what its users may do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from embedded.access.settings import Security

from embedded.access.users import MEMBER
from embedded.clients import Client
from embedded.mongod import Mongod
from shard_client.errors import CommandError
from shard_client.wire.authentication import Credentials, log_in, read_key_file

KEY = "c2VjcmV0IG9mIHRoZSBjbHVzdGVy"


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    path = tmp_path_factory.mktemp("keys") / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    assert read_key_file(path).password == KEY
    return Security.of(1_700_000_000.0, key_file=path)


@pytest.fixture
def member(security: Security) -> Mongod:
    return Mongod("rs", wall=lambda: 1_700_000_000.0, security=security)


class Connection:
    """A client's connection to a member, without a socket."""

    def __init__(self, member: Mongod, peer: str = "127.0.0.1:5") -> None:
        self._member = member
        self.client = Client(connection_id=1, peer=peer)

    async def command(
        self, database: str, command: Mapping[str, Any], *, timeout: float | None = None
    ) -> dict[str, Any]:
        reply = await self._member.run_command(database, dict(command), self.client)
        if not reply["ok"]:
            raise CommandError.from_reply(reply)
        return reply

    async def log_in(self, user: str, password: str, source: str = "admin") -> None:
        await log_in(self, Credentials(user, source, (password,)), timeout=1)

    async def code(self, database: str, command: Mapping[str, Any]) -> int:
        """Return the code of the command's error; 0 without one."""
        try:
            await self.command(database, command)
        except CommandError as error:
            return error.code
        return 0


async def administrator(member: Mongod) -> Connection:
    """Return a connection of the first user, which has all rights."""
    connection = Connection(member)
    first = {"createUser": "root", "pwd": "root", "roles": ["root"]}
    await connection.command("admin", first)
    await connection.log_in("root", "root")
    return connection


async def test_only_a_local_client_creates_the_first_user(member: Mongod) -> None:
    remote = Connection(member, "192.0.2.1:5")
    first = {"createUser": "a", "pwd": "a", "roles": ["root"]}
    assert await remote.code("admin", first) == 13
    local = Connection(member)
    assert await local.code("db", {"insert": "c", "documents": [{}]}) == 13
    assert await local.code("admin", first) == 0
    assert await local.code("admin", {**first, "createUser": "b"}) == 13


async def test_nothing_but_the_handshake_before_the_login(member: Mongod) -> None:
    await administrator(member)
    stranger = Connection(member)
    assert await stranger.code("admin", {"hello": 1}) == 0
    with pytest.raises(CommandError, match="command find requires authentication"):
        await stranger.command("db", {"find": "c"})
    assert await stranger.code("db", {"nosuch": 1}) == 59


async def test_a_wrong_password(member: Mongod) -> None:
    await administrator(member)
    for user, password in (("root", "wrong"), ("stranger", "root")):
        with pytest.raises(CommandError, match="Authentication failed"):
            await Connection(member).log_in(user, password)


async def test_members_log_in_with_the_key_file(member: Mongod) -> None:
    connection = Connection(member, "192.0.2.1:5")
    await connection.log_in(MEMBER.user, KEY, MEMBER.database)
    status = await connection.command("admin", {"connectionStatus": 1})
    assert status["authInfo"]["authenticatedUsers"] == [{"user": "__system", "db": "local"}]
    assert await connection.code("admin", {"appendOplogNote": 1, "data": {}}) == 0
    with pytest.raises(CommandError, match="Authentication failed"):
        await Connection(member).log_in(MEMBER.user, "wrongkey", MEMBER.database)


async def test_new_roles_apply_immediately(member: Mongod) -> None:
    root = await administrator(member)
    await root.command("admin", {"createUser": "a", "pwd": "a", "roles": []})
    user = Connection(member)
    await user.log_in("a", "a")
    reading = {"find": "c"}
    assert await user.code("db", reading) == 13
    role = {"role": "read", "db": "db"}
    await root.command("admin", {"grantRolesToUser": "a", "roles": [role]})
    assert await user.code("db", reading) == 0
    assert await user.code("other", reading) == 13
    await root.command("admin", {"revokeRolesFromUser": "a", "roles": [role]})
    assert await user.code("db", reading) == 13


async def test_a_role_of_one_s_own(member: Mongod) -> None:
    root = await administrator(member)
    watching = {"resource": {"db": "db", "collection": ""}, "actions": ["changeStream", "find"]}
    role = {"createRole": "watcher", "privileges": [watching], "roles": []}
    await root.command("admin", role)
    await root.command("admin", {"createUser": "a", "pwd": "a", "roles": ["watcher"]})
    user = Connection(member)
    await user.log_in("a", "a")
    stream = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
    assert await user.code("db", stream) == 0
    assert await user.code("other", stream) == 13
    assert await user.code("db", {"insert": "c", "documents": [{}]}) == 13
    await root.command("admin", {"dropRole": "watcher"})
    assert await user.code("db", stream) == 13


async def test_a_new_user_of_the_same_name_is_another(member: Mongod) -> None:
    root = await administrator(member)
    created = {"createUser": "a", "pwd": "a", "roles": ["readAnyDatabase"]}
    await root.command("admin", created)
    user = Connection(member)
    await user.log_in("a", "a")
    assert await user.code("db", {"find": "c"}) == 0
    await root.command("admin", {"dropUser": "a"})
    await root.command("admin", created)
    with pytest.raises(CommandError, match="requires authentication"):
        await user.command("db", {"find": "c"})


async def test_users_see_themselves_and_their_administrator_all(member: Mongod) -> None:
    root = await administrator(member)
    await root.command("admin", {"createUser": "a", "pwd": "a", "roles": []})
    user = Connection(member)
    await user.log_in("a", "a")
    asked = {"usersInfo": [{"user": "a", "db": "admin"}], "showPrivileges": True}
    (shown,) = (await user.command("admin", asked))["users"]
    assert "credentials" not in shown
    assert await user.code("admin", {"usersInfo": "root"}) == 13
    assert len((await root.command("admin", {"usersInfo": 1}))["users"]) == 2


async def test_times_are_signed_and_checked(member: Mongod) -> None:
    root = await administrator(member)
    time = (await root.command("admin", {"ping": 1}))["$clusterTime"]
    assert time["signature"]["keyId"] != 0
    later = {**time, "clusterTime": type(time["clusterTime"])(time["clusterTime"].time + 9, 1)}
    forged = {"ping": 1, "$clusterTime": later}
    assert await root.code("admin", forged) == 204
    unknown = {**later, "signature": {**time["signature"], "keyId": 5}}
    assert await root.code("admin", {"ping": 1, "$clusterTime": unknown}) == 211
    system = Connection(member)
    await system.log_in(MEMBER.user, KEY, MEMBER.database)
    reply = await system.command("admin", forged)
    assert reply["$clusterTime"]["signature"]["keyId"] == 0


async def test_sessions_of_different_users_are_different(member: Mongod) -> None:
    root = await administrator(member)
    roles = ["readWriteAnyDatabase"]
    await root.command("admin", {"createUser": "a", "pwd": "a", "roles": roles})
    user = Connection(member)
    await user.log_in("a", "a")
    session = {"lsid": {"id": b"0123456789abcdef"}, "txnNumber": 1}
    inserting = {"insert": "c", "documents": [{"_id": 1}], **session}
    await root.command("db", inserting)
    # A retry of the other user's write would succeed; this is a write of its own.
    reply = await user.command("db", inserting)
    assert reply["writeErrors"][0]["code"] == 11000


async def test_without_authorization_users_may_log_in_and_need_not() -> None:
    open_member = Mongod("rs", wall=lambda: 1_700_000_000.0)
    connection = await administrator(open_member)
    status = await connection.command("admin", {"connectionStatus": 1})
    assert status["authInfo"]["authenticatedUsers"] == [{"user": "root", "db": "admin"}]
    assert await Connection(open_member).code("db", {"find": "c"}) == 0


def test_a_key_file_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o644)
    with pytest.raises(ValueError, match="too open"):
        Security.of(0.0, key_file=path)
