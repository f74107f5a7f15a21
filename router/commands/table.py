"""The registry of the commands that the router answers, by each of their names."""

from collections.abc import Iterable, Mapping

from bson.int64 import Int64

from router.commands import (
    aggregate,
    authentication,
    certificates,
    cursors,
    diagnostics,
    get_parameter,
    hello,
    local_only,
    log_level,
    process_status,
    report_job,
    server_status,
    sessions,
    user_changes,
)
from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer
from router.commands.call import Call, Command
from router.commands.fields import text
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError


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
        for command in sorted(_ALL, key=lambda command: command.names[0])
        if (not command.for_tests or call.node.fail_points is not None)
        and (call.node.access is not None or command not in authentication.RELAYED)
        and (call.node.certificates is not None or command not in certificates.COMMANDS)
        and not command.names[0].startswith("_")  # for the router's own processes
    }
    return Answer({"commands": listed})


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


_ALL: tuple[Command, ...] = (
    *hello.COMMANDS,
    *authentication.COMMANDS,
    *diagnostics.COMMANDS,
    *server_status.COMMANDS,
    *process_status.COMMANDS,
    *report_job.COMMANDS,
    *aggregate.COMMANDS,
    *cursors.COMMANDS,
    *sessions.COMMANDS,
    *user_changes.COMMANDS,
    Command(
        ("configureFailPoint",),
        configure_fail_point,
        "set a fail point",
        admin_only=True,
        for_tests=True,
        before_login=True,
    ),
    *get_parameter.COMMANDS,
    *certificates.COMMANDS,
    *log_level.COMMANDS,
    *local_only.COMMANDS,
    Command(("listCommands",), list_commands, "the commands", before_login=True),
)


def _by_name(commands: Iterable[Command]) -> dict[str, Command]:
    return {name: command for command in commands for name in command.names}


COMMANDS: Mapping[str, Command] = _by_name(_ALL)
"""The commands by name, including former names."""
