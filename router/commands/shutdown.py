"""The errors for commands that the router's shutdown refuses or interrupts."""

from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_STREAM_COMMANDS = frozenset({"aggregate", "getMore"})


def shutting_down(name: str) -> CommandError:
    """Return the error for a new command; a client can retry it elsewhere or later."""
    return _labelled(
        name, CommandError(ErrorCode.ShutdownInProgress, "The server is shutting down")
    )


def interrupted(name: str) -> CommandError:
    """Return the error for a command that was in flight for too long."""
    return _labelled(name, CommandError(ErrorCode.InterruptedAtShutdown, "interrupted at shutdown"))


def _labelled(name: str, error: CommandError) -> CommandError:
    return error.with_change_stream_label() if name in _STREAM_COMMANDS else error
