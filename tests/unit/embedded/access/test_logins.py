"""Logins on an embedded member, and what its users may do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from embedded.access.control import AccessControl
from embedded.clients import Client
from embedded.mongod import Mongod
from shard_client.errors import CommandError
from shard_client.wire.authentication import Credentials, log_in

KEY = "c2VjcmV0IG9mIHRoZSBjbHVzdGVy"


@pytest.fixture
def member() -> Mongod:
    return Mongod("rs", access=AccessControl(key=KEY))


class Connection:
    """A client's connection to a member, without a socket."""

    def __init__(self, member: Mongod) -> None:
        self._member = member
        self.client = Client(connection_id=1)

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


async def logged_in(member: Mongod, *roles: Any) -> Connection:
    """Return a connection of a new user with these roles."""
    root = await administrator(member)
    await root.command("admin", {"createUser": "a", "pwd": "a", "roles": list(roles)})
    user = Connection(member)
    await user.log_in("a", "a")
    return user


async def test_only_the_first_user_is_created_without_a_login(member: Mongod) -> None:
    stranger = Connection(member)
    assert await stranger.code("db", {"insert": "c", "documents": [{}]}) == 13
    await administrator(member)
    second = {"createUser": "b", "pwd": "b", "roles": ["root"]}
    assert await stranger.code("admin", second) == 13
    assert await stranger.code("admin", {"hello": 1}) == 0
    with pytest.raises(CommandError, match="command find requires authentication"):
        await stranger.command("db", {"find": "c"})


async def test_a_wrong_password(member: Mongod) -> None:
    await administrator(member)
    for user, password in (("root", "wrong"), ("stranger", "root")):
        with pytest.raises(CommandError, match="Authentication failed"):
            await Connection(member).log_in(user, password)


async def test_members_log_in_with_the_key_file(member: Mongod) -> None:
    connection = Connection(member)
    await connection.log_in("__system", KEY, "local")
    status = await connection.command("admin", {"connectionStatus": 1})
    assert status["authInfo"]["authenticatedUsers"] == [{"user": "__system", "db": "local"}]
    assert await connection.code("admin", {"appendOplogNote": 1, "data": {}}) == 0
    assert status["$clusterTime"]["signature"]["keyId"] == 0
    with pytest.raises(CommandError, match="Authentication failed"):
        await Connection(member).log_in("__system", "wrongkey", "local")


@pytest.mark.parametrize(
    ("role", "allowed", "refused"),
    [
        ({"role": "read", "db": "db"}, [("db", "find")], [("db", "insert"), ("other", "find")]),
        (
            {"role": "readWrite", "db": "db"},
            [("db", "find"), ("db", "insert")],
            [("other", "find")],
        ),
        ("readAnyDatabase", [("db", "find"), ("other", "find")], [("config", "find")]),
        ("clusterMonitor", [("config", "find"), ("admin", "serverStatus")], [("db", "find")]),
    ],
    ids=str,
)
async def test_roles(
    member: Mongod, role: Any, allowed: list[tuple[str, str]], refused: list[tuple[str, str]]
) -> None:
    user = await logged_in(member, role)
    for tried, code in ((allowed, 0), (refused, 13)):
        for database, name in tried:
            assert await user.code(database, {name: "c", "documents": [{}]}) == code, (
                name,
                database,
            )


async def test_a_new_user_of_the_same_name_is_another(member: Mongod) -> None:
    user = await logged_in(member, "readAnyDatabase")
    assert await user.code("db", {"find": "c"}) == 0
    member.access.users.drop(user.client.account.name)
    root = Connection(member)
    await root.log_in("root", "root")
    await root.command("admin", {"createUser": "a", "pwd": "a", "roles": ["readAnyDatabase"]})
    with pytest.raises(CommandError, match="requires authentication"):
        await user.command("db", {"find": "c"})


async def test_clients_get_signed_times(member: Mongod) -> None:
    user = await logged_in(member)
    time = (await user.command("admin", {"ping": 1}))["$clusterTime"]
    assert time["signature"]["keyId"] == member.access.keys()[0]["_id"]


async def test_without_authorization_users_may_log_in_and_need_not() -> None:
    open_member = Mongod("rs")
    connection = await administrator(open_member)
    status = await connection.command("admin", {"connectionStatus": 1})
    assert status["authInfo"]["authenticatedUsers"] == [{"user": "root", "db": "admin"}]
    assert await Connection(open_member).code("db", {"find": "c"}) == 0


def test_a_key_file_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o644)
    with pytest.raises(ValueError, match="too open"):
        AccessControl.of(False, path, None)
