"""The users that are logged in, with their privileges, which are read again at intervals.

mongos keeps the same cache: it asks the config server, by default every 30 s, whether a user has
changed (``userCacheInvalidationIntervalSecs``).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import structlog

from router.access.privileges import EVERYTHING, NOTHING, Privileges
from router.catalog.cluster import CONFIG, Cluster
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.authentication import MEMBER, MEMBER_SOURCE

log = structlog.get_logger()

REFRESH_SECONDS = 30.0
_MOST_ASKED = 500
_ANSWER_TIMEOUT = 10.0


class UserName(NamedTuple):
    """A user's name and the database that it belongs to."""

    user: str
    database: str

    def __str__(self) -> str:
        return f"{self.user}@{self.database}"


class User:
    """A user as all its connections see it.

    ``privileges`` and ``roles`` are replaced when they change; ``exists`` is cleared when the user
    has been dropped. Then its connections count as not logged in, as with mongos.
    """

    __slots__ = ("__weakref__", "exists", "name", "privileges", "roles", "user_id")

    def __init__(self, name: UserName) -> None:
        self.name = name
        self.privileges: Privileges = NOTHING
        self.roles: list[Any] = []
        self.exists = True
        self.user_id: Any = None

    def __str__(self) -> str:
        return str(self.name)


class Users:
    """The users with at least one connection. ``await close()`` ends the refresh.

    Create it in a running loop.

    Args:
        cluster: the cluster whose config server holds the users.
        refresh: seconds between two readings of the users' privileges.
    """

    def __init__(self, cluster: Cluster, *, refresh: float = REFRESH_SECONDS) -> None:
        self._cluster = cluster
        self._refresh = refresh
        self._changed: Callable[[User], None] = lambda user: None
        self._users: WeakValueDictionary[UserName, User] = WeakValueDictionary()
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh(), name="users")

    def when_changed(self, changed: Callable[[User], None]) -> None:
        """Call ``changed`` with each user whose privileges have changed or that was dropped."""
        self._changed = changed

    async def get(self, name: UserName) -> User:
        """Return the user; its privileges are read now unless another connection has it.

        Raises:
            CommandError: the user does not exist any more, or the config server does not answer.
        """
        user = self._users.get(name)
        if user is not None and user.exists:
            return user
        user = User(name)
        if name == (MEMBER, MEMBER_SOURCE):
            user.privileges = EVERYTHING
            user.roles = [{"role": MEMBER, "db": MEMBER_SOURCE}]
            return user
        found = await self._read([name])
        if name not in found:
            raise CommandError(ErrorCode.UserNotFound, f'User "{name}" not found')
        _update(user, found[name])
        return self._users.setdefault(name, user)

    async def close(self) -> None:
        """End the refresh."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def refresh(self) -> None:
        """Read the privileges of all users now; raises CommandError, NetworkError."""
        names = list(self._users)
        for start in range(0, len(names), _MOST_ASKED):
            asked = names[start : start + _MOST_ASKED]
            found = await self._read(asked)
            for name in asked:
                user = self._users.get(name)
                if user is not None and user.exists:
                    self._renew(user, found.get(name))

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh)
            try:
                await self.refresh()
            except (CommandError, NetworkError) as error:
                log.warning(
                    "Could not fetch updated user privilege information; continuing to use old "
                    "information",
                    component="ACCESS",
                    error=str(error),
                )
            except Exception:  # the users must go on being refreshed
                log.exception("Unexpected error", component="ACCESS")

    def _renew(self, user: User, entry: Mapping[str, Any] | None) -> None:
        before = user.privileges
        if entry is None or entry.get("userId") != user.user_id:
            log.info(
                "Removed deleted user from session cache of user information",
                component="ACCESS",
                id=20245,
                user=str(user),
            )
            user.exists, user.privileges, user.roles = False, NOTHING, []
        else:
            _update(user, entry)
        if user.privileges != before:
            self._changed(user)

    async def _read(self, names: Iterable[UserName]) -> dict[UserName, Mapping[str, Any]]:
        """Return the config server's description of each of the users that exist."""
        asked = [{"user": name.user, "db": name.database} for name in names]
        connection = await self._cluster.connect(CONFIG)
        try:
            reply = await connection.command(
                "admin", {"usersInfo": asked, "showPrivileges": True}, timeout=_ANSWER_TIMEOUT
            )
        finally:
            self._cluster.release(connection)
        found: dict[UserName, Mapping[str, Any]] = {}
        listed = reply.get("users")
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, Mapping):
                found[UserName(str(entry.get("user")), str(entry.get("db")))] = entry
        return found


def _update(user: User, entry: Mapping[str, Any]) -> None:
    listed = entry.get("inheritedPrivileges")
    roles = entry.get("inheritedRoles")
    privileges = Privileges.of(
        each for each in (listed if isinstance(listed, list) else ()) if isinstance(each, Mapping)
    )
    if privileges != user.privileges:
        user.privileges = privileges
    user.roles = list(roles) if isinstance(roles, list) else []
    user.user_id = entry.get("userId")
