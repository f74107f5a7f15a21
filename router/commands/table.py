"""All commands that the router answers, by each of their names."""

from collections.abc import Mapping
from typing import Final

from bson.int64 import Int64

from router.commands import (  # noqa: F401 - each adds its commands
    administration,
    aggregate,
    authentication,
    call,
    cursors,
    diagnostics,
    hello,
    parameters,
    process_status,
    server_status,
    sessions,
)
from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer
from router.commands.call import Call, Command, answers
from router.request.fields import text
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

COMMANDS: Final[Mapping[str, Command]] = call.COMMANDS
"""The commands by name, including former names."""


@answers("listCommands", help="the commands", before_login=True)
async def list_commands(call: Call) -> AnyAnswer:
    """List the commands answered here; pass through to an upstream, whose list holds them all."""
    if call.node.upstream is not None:
        return PASS_THROUGH
    listed = {
        command.names[0]: {
            "help": command.help,
            "requiresAuth": not command.while_quiescing,
            "adminOnly": command.admin_only,
            "apiVersions": list(command.api_versions),
        }
        for command in sorted(set(COMMANDS.values()), key=lambda command: command.names[0])
        # Those that begin with an underscore are for the router's own processes.
        if command.where(call.node) and not command.names[0].startswith("_")
    }
    return Answer({"commands": listed})


@answers(
    "configureFailPoint",
    help="set a fail point",
    admin_only=True,
    for_tests=True,
    before_login=True,
    where=lambda node: node.fail_points is not None,
)
async def configure_fail_point(call: Call) -> AnyAnswer:
    """Set one of the router's fail points; pass all others to the upstream; raises CommandError.

    The command exists only where fail points do.
    """
    name = text(call.command, "configureFailPoint", "configureFailPoint")
    fail_points = call.node.fail_points
    assert fail_points is not None
    if name in fail_points:
        return Answer({"count": Int64(fail_points.set(call.command))})
    if call.upstream is not None:
        return PASS_THROUGH
    raise CommandError(ErrorCode.FailPointSetFailed, f"{name} not found")
