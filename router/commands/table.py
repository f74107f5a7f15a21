"""All commands that the router answers, by each of their names."""

from collections.abc import Mapping
from typing import Final

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
from router.commands.call import Command

COMMANDS: Final[Mapping[str, Command]] = call.COMMANDS
"""The commands by name, including former names."""
