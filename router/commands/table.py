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
)
from router.commands.call import Call, Command, answers
from router.commands.reply_bodies import PASS_THROUGH, Answer, AnyAnswer
from router.request.fields import text
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

COMMANDS: Final[Mapping[str, Command]] = call.COMMANDS
"""The commands by name, including former names."""


@answers(
    "configureFailPoint",
    help="set a fail point",
    admin_only=True,
    for_tests=True,
    before_login=True,
)
async def configure_fail_point(call: Call) -> AnyAnswer:
    """Set one of the router's fail points; pass all others to the upstream; raises CommandError.

    The upstream also gets those with a mode or data that the router does not know, and acts on the
    commands that pass through. The command exists only where fail points do.
    """
    name = text(call.command, "configureFailPoint", "configureFailPoint")
    fail_points = call.node.fail_points
    assert fail_points is not None
    if name in fail_points:
        try:
            count = fail_points.set(call.command)
        except CommandError:
            if call.upstream is None:
                raise
            fail_points.passed_on.add(name)
            return PASS_THROUGH
        if name in fail_points.passed_on and (link := call.upstream_link) is not None:
            await link.command("admin", {"configureFailPoint": name, "mode": "off"})
            fail_points.passed_on.discard(name)
        return Answer({"count": Int64(count)})
    if call.upstream is not None:
        return PASS_THROUGH
    raise CommandError(ErrorCode.FailPointSetFailed, f"{name} not found")
