"""The commands that the router answers itself, one module for each family; what they share."""

from router.commands import (  # noqa: F401 - each adds its commands to command.COMMANDS
    administration,
    aggregate,
    authentication,
    cursors,
    diagnostics,
    hello,
    parameters,
    process_status,
    server_status,
)
