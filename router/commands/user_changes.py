"""Changes of users and roles: all workers read the users again before the client gets its reply."""

from typing import Final

from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer
from router.commands.call import Call, Command, Node

_INVALIDATE: Final = "invalidateUserCache"

CHANGES_USERS: Final = frozenset(
    {
        _INVALIDATE, "createRole", "createUser", "dropAllRolesFromDatabase",
        "dropAllUsersFromDatabase", "dropRole", "dropUser", "grantPrivilegesToRole",
        "grantRolesToRole", "grantRolesToUser", "revokePrivilegesFromRole", "revokeRolesFromRole",
        "revokeRolesFromUser", "updateRole", "updateUser",
    }
)  # fmt: skip
"""The commands after which mongos forgets what it knows of users."""


async def users_changed(node: Node) -> None:
    """Read the users again, here and in the other workers."""
    if node.access is not None:
        await node.access.users.invalidate()
        if node.peers is not None:
            await node.peers.ask_all("admin", {_INVALIDATE: 1})


async def invalidate_user_cache(call: Call) -> AnyAnswer:
    """Read the users again; with an upstream, it gets the command too."""
    if call.upstream is not None:
        return PASS_THROUGH  # the users are read again when its reply arrives
    if call.client.is_worker and call.node.access is not None:
        await call.node.access.users.invalidate()
    else:
        await users_changed(call.node)
    return Answer({})


COMMANDS = (
    Command(
        (_INVALIDATE,),
        invalidate_user_cache,
        "read users and roles again",
        admin_only=True,
        action=_INVALIDATE,
    ),
)
