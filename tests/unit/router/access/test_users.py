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


@pytest.fixture
def config() -> _Config:
    return _Config()


def _users(config: _Config) -> Users:
    return Users(cast(Cluster, config), refresh=60.0)


async def test_change_during_a_users_first_reading_applies_to_it(config: _Config) -> None:
    users, answered = _users(config), asyncio.Event()
    old = await users.get(OLD)
    config.held[NEW.user] = answered
    login = asyncio.create_task(users.get(NEW))
    await config.holds()
    config.change()
    await users.invalidate()
    answered.set()
    new = await login
    assert (old.roles, new.roles) == (["after"], ["after"])


async def test_change_read_while_a_user_logs_in_applies_to_it(config: _Config) -> None:
    users, first, second = _users(config), asyncio.Event(), asyncio.Event()
    old = await users.get(OLD)
    config.held[NEW.user] = first
    login = asyncio.create_task(users.get(NEW))
    await config.holds()
    config.change()
    config.held[OLD.user] = second
    reading = asyncio.create_task(users.invalidate())
    await config.holds()
    first.set()
    new = await login
    second.set()
    await reading
    assert (old.roles, new.roles) == (["after"], ["after"])
