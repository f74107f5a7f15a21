"""The users that are logged in, with their privileges, which are read again when they change.

mongos keeps the same cache: it asks the config server, by default every 30 s, whether a user has
changed (``userCacheInvalidationIntervalSecs``), and forgets all after a change that it passes on.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import structlog

from router.catalog.cluster import PAUSE_AFTER_REFUSAL, Cluster
from router.privileges import EVERYTHING, NOTHING, Privileges, User, UserName
from router.tasks import SharedAnswer
from shard_client.errors import CommandError, ErrorCode, NetworkError
from shard_client.wire.authentication import MEMBER, MEMBER_SOURCE

log = structlog.get_logger(component="ACCESS")

_MOST_ASKED = 500
_ANSWER_TIMEOUT = 10.0
_WATCH = 2.0
_REFRESH_TIMEOUT = 2.0
_NO_GENERATION = frozenset({ErrorCode.Unauthorized, ErrorCode.CommandNotFound})


class Users:
    """The users with at least one connection. ``keep_fresh`` reads them again and again.

    Args:
        cluster: the cluster whose config server holds the users.
        refresh: seconds between two readings of the users' privileges if the config server does not
            tell the router whether they have changed; otherwise it is asked that every two seconds,
            or more often.
    """

    def __init__(self, cluster: Cluster, refresh: float) -> None:
        self._cluster = cluster
        self._pause = refresh
        self.changed: Callable[[User], None] = lambda user: None
        """Called with each user whose privileges have changed or that was dropped."""
        self._users: WeakValueDictionary[UserName, User] = WeakValueDictionary()
        self._invalidations = 0
        self._read_version: tuple[Any, int] = (None, 0)
        self._refused_until = float("-inf")
        """The time up to which the config server is not asked whether users have changed."""
        self._reading = SharedAnswer(self._read_changes, "read the users")

    async def get(self, name: UserName) -> User:
        """Return the user as it is now, which may be another one than that of older connections.

        If the config server does not answer, it is the user that another connection has. Raises
        CommandError: the user does not exist any more, or the config server does not answer.
        """
        if name == (MEMBER, MEMBER_SOURCE):
            member = User(name)
            member.privileges = EVERYTHING
            member.roles = [{"role": MEMBER, "db": MEMBER_SOURCE}]
            return member
        if self._known(name) is not None:
            await self._refresh(_REFRESH_TIMEOUT)
        current = self._known(name)
        if current is not None:
            return current
        version = None
        while version != self._read_version:  # a reading of the others has left this user out
            version = self._read_version
            users = await self._read([name])
        current = self._known(name)
        if current is not None:  # another login was quicker, and may have newer rights
            return current
        if name not in users:
            raise CommandError(ErrorCode.UserNotFound, f'User "{name}" not found')
        user = User(name)
        _update(user, users[name])
        self._users[name] = user
        return user

    def _known(self, name: UserName) -> User | None:
        user = self._users.get(name)
        return user if user is not None and user.exists else None

    async def invalidate(self) -> None:
        """Read the privileges of all users now, as after a change that a client has made.

        If the config server does not answer soon, the last known privileges apply until it does.
        """
        self._invalidations += 1
        await self._refresh(_REFRESH_TIMEOUT)

    async def _refresh(self, timeout: float | None) -> None:
        """Read the privileges of all users if a user or role may have changed; log a failure.

        ``timeout`` is the seconds to wait for the config server.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._reading.get()
        except (CommandError, NetworkError, TimeoutError) as error:
            log.warning(
                "Could not fetch updated user privilege information; continuing to use old "
                "information",
                error=str(error) or "no answer in time",
            )

    async def _read_changes(self) -> None:
        invalidations = self._invalidations
        version = (await self._read_generation(), invalidations)
        if version[0] is not None and version == self._read_version:
            return
        read = set[User]()
        while unread := [user for user in self._users.values() if user not in read]:
            asked = unread[:_MOST_ASKED]
            read.update(asked)
            users = await self._read(user.name for user in asked)
            for user in asked:
                if user.exists:
                    self._renew(user, users.get(user.name))
        self._read_version = version

    async def _read_generation(self) -> Any:
        """Return what the config server has a new value of after each change of a user or role.

        mongos asks for it in the same way. It is None if the router may not ask: that takes the
        rights of a member.
        """
        if not self._asks_generation:
            return None
        asking = {"_getUserCacheGeneration": 1}
        try:
            reply = await self._cluster.command(
                self._cluster.catalog, "admin", asking, _ANSWER_TIMEOUT
            )
        except CommandError as error:
            if error.code not in _NO_GENERATION:
                raise
            self._refused_until = asyncio.get_running_loop().time() + PAUSE_AFTER_REFUSAL
            return None
        # Later versions return a time instead of an id.
        return reply.get("cacheGeneration", reply.get("authInfoOpTime"))

    @property
    def _asks_generation(self) -> bool:
        """Whether the config server tells the router if users have changed; a set's cannot."""
        return self._cluster.sharded and asyncio.get_running_loop().time() >= self._refused_until

    async def keep_fresh(self) -> None:
        """Read the privileges of all users again when they may have changed, until cancelled."""
        while True:
            pause = min(self._pause, _WATCH) if self._asks_generation else self._pause
            await asyncio.sleep(pause)
            if not self._users:
                continue
            try:
                await self._refresh(None)
            except Exception:  # the refreshing of users must continue
                log.exception("Unexpected error")

    def _renew(self, user: User, entry: Mapping[str, Any] | None) -> None:
        before = user.privileges
        if entry is None or entry.get("userId") != user.user_id:
            log.info(
                "Removed deleted user from session cache of user information",
                id=20245,
                user=str(user),
            )
            user.exists, user.privileges, user.roles = False, NOTHING, []
        else:
            _update(user, entry)
        if user.privileges != before:
            self.changed(user)

    async def _read(self, names: Iterable[UserName]) -> dict[UserName, Mapping[str, Any]]:
        """Return the config server's description of each of the users that exist."""
        asked = [{"user": name.user, "db": name.database} for name in names]
        command = {"usersInfo": asked, "showPrivileges": True}
        reply = await self._cluster.command(
            self._cluster.catalog, "admin", command, _ANSWER_TIMEOUT
        )
        return {UserName(entry["user"], entry["db"]): entry for entry in reply["users"]}


def _update(user: User, entry: Mapping[str, Any]) -> None:
    user.privileges = Privileges.of(entry["inheritedPrivileges"])
    user.roles = entry["inheritedRoles"]
    user.user_id = entry.get("userId")
