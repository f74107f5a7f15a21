"""Which failures of a shard's cursor are mended by opening it again."""

from shard_client.error_codes import NOT_PRIMARY_CODES, RESUMABLE_CODES, ErrorCode
from shard_client.errors import RESUMABLE_LABEL, CommandError, NetworkError

_CURSOR_GONE = frozenset({ErrorCode.CursorNotFound, ErrorCode.CursorKilled})
_NETWORK = frozenset({ErrorCode.HostUnreachable, ErrorCode.HostNotFound, ErrorCode.SocketException})


def is_resumable(error: CommandError) -> bool:
    """Tell whether a cursor that failed so may be opened again after its last promise.

    A cursor that is gone on the shard counts; a lost oplog position and fatal errors do not
    (docs/protocol.md, section 4).
    """
    return (
        error.code in RESUMABLE_CODES
        or error.code in NOT_PRIMARY_CODES
        or error.code in _CURSOR_GONE
        or error.code == ErrorCode.NetworkInterfaceExceededTimeLimit
        or RESUMABLE_LABEL in error.labels
    )


def blames_member(error: CommandError) -> bool:
    """Tell whether the member that answered so, or not at all, is to be looked up again."""
    return error.code in NOT_PRIMARY_CODES or error.code in _NETWORK


def from_network(error: NetworkError, address: str) -> CommandError:
    """Return what mongos tells a client of a member that it could not talk to."""
    return CommandError(
        ErrorCode.HostUnreachable, f"Error connecting to {address} :: caused by :: {error}"
    )
