"""Classification of a shard cursor's failures: resumable or not, network or member."""

from shard_client.error_codes import NOT_PRIMARY_CODES, RESUMABLE_CODES, ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError, NetworkError

_CURSOR_GONE = frozenset(
    {ErrorCode.CursorNotFound, ErrorCode.CursorKilled, ErrorCode.QueryPlanKilled}
)
"""Codes of a cursor that its member has lost. A member that rolls back closes its catalog, which
kills its cursors with QueryPlanKilled."""
_NETWORK = frozenset({ErrorCode.HostUnreachable, ErrorCode.HostNotFound, ErrorCode.SocketException})


def is_resumable(error: CommandError) -> bool:
    """Return whether a cursor can be reopened after its last watermark when it failed with
    ``error``.

    A missing or killed cursor on the shard is resumable; a lost oplog position and fatal errors are
    not (docs/protocol.md#opening). mongos passes QueryPlanKilled on, and drivers do not resume
    after it; reopening the member's cursor loses nothing.
    """
    return (
        error.code in RESUMABLE_CODES
        or error.code in NOT_PRIMARY_CODES
        or error.code in _CURSOR_GONE
        or error.code == ErrorCode.NetworkInterfaceExceededTimeLimit
        or RESUMABLE_LABEL in error.labels
    )


def blames_member(error: CommandError) -> bool:
    """Return whether ``error`` (not primary, or unreachable) requires selecting a member again."""
    return error.code in NOT_PRIMARY_CODES or error.code in _NETWORK


def from_network(error: NetworkError, address: str) -> CommandError:
    """Return the error that mongos reports to a client for an unreachable member."""
    return CommandError(
        ErrorCode.HostUnreachable, f"Error connecting to {address} :: caused by :: {error}"
    )
