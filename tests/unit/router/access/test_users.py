"""The users that are logged in, when logins meet changes of their rights."""

import asyncio
from typing import Any, cast

import pytest

from router.access.users import Users
from router.catalog.cluster import Cluster
from router.privileges import UserName

OLD, NEW = UserName("old", "admin"), UserName("new", "admin")


class _Config:
    """A config server whose answers to usersInfo wait for the test."""

    catalog = "config"
    sharded = True

    def __init__(self) -> None:
        self.generation = 1
        self.role = "before"
        self.held = dict[str, asyncio.Event]()
        """What an answer that names the user, and is made already, waits for."""
        self.asked = asyncio.Event()
        """Set when an answer waits."""

    async def command(
        self, _target: str, _database: str, command: dict[str, Any], _timeout: float
    ) -> dict[str, Any]:
        if "_getUserCacheGeneration" in command:
            return {"cacheGeneration": self.generation}
        rights = {"inheritedPrivileges": [], "inheritedRoles": [self.role]}
        reply = {"users": [{**name, **rights} for name in command["usersInfo"]]}
        for name in command["usersInfo"]:
            if (answered := self.held.pop(name["user"], None)) is not None:
                self.asked.set()
                await answered.wait()
        return reply

    async def holds(self) -> None:
        """Wait until an answer waits."""
        await self.asked.wait()
        self.asked.clear()

    def change(self) -> None:
        """Change the rights of all users."""
        self.generation += 1
        self.role = "after"


@pytest.mark.parametrize("read_first", [True, False])
async def test_a_change_while_a_user_logs_in_applies_to_all_users(read_first: bool) -> None:
    """Whether the change has been read before the login's answer arrives or is being read."""
    config, answer, change = _Config(), asyncio.Event(), asyncio.Event()
    users = Users(cast(Cluster, config), refresh=60.0)
    old = await users.get(OLD)
    config.held[NEW.user] = answer
    login = asyncio.create_task(users.get(NEW))
    await config.holds()
    config.change()
    if not read_first:
        config.held[OLD.user] = change
    reading = asyncio.create_task(users.invalidate())
    await (reading if read_first else config.holds())
    answer.set()
    new = await login
    change.set()
    await reading
    assert (old.roles, new.roles) == (["after"], ["after"])
