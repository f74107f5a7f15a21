"""What a client may do: checked before each command, with mongos's errors.

The checks that mongos makes are in its commands; those of the commands that the router answers are
in ``Command`` (``action``, ``before_login``). Commands for the upstream are checked there.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from bson.binary import UUID_SUBTYPE, Binary

from router.bson_text import LONGEST, plain, render
from router.privileges import STREAM_ACTIONS, Resource, User, stream_resource
from shard_client.errors import CommandError, ErrorCode

log = structlog.get_logger(component="ACCESS")

_LONGEST_LOGGED = 1024


def login_required(name: str) -> CommandError:
    """Return mongos's error for a command before the login."""
    return CommandError(ErrorCode.Unauthorized, f"command {name} requires authentication")


def not_for_certificates(name: str) -> CommandError:
    """Return the error for a command that a client with a certificate's login cannot pass on."""
    return CommandError(
        ErrorCode.Unauthorized,
        f"{name} requires a login on the upstream mongos, to which the router cannot pass on a "
        "certificate: log in with SCRAM-SHA-256, or connect to the mongos itself. Change streams "
        "work with a certificate",
    )


def require(
    user: User, resource: Resource, *actions: str, database: str, command: Mapping[str, Any]
) -> None:
    """Check that the user may take the actions on the resource; raises CommandError (13) if not.

    The error shows ``command`` and its ``database``.
    """
    if not user.privileges.allow(resource, *actions):
        raise not_authorized(database, command, str(user))


def require_stream(
    user: User, database: str, collection: str | None, command: Mapping[str, Any]
) -> None:
    """Check that the user may read a change stream, as ``require`` does."""
    resource = stream_resource(database, collection)
    require(user, resource, *STREAM_ACTIONS, database=database, command=command)


def not_authorized(database: str, command: Mapping[str, Any], user: str | None) -> CommandError:
    """Return mongos's error for a command that the user may not run; log the refusal."""
    text = render(command, _scalar, space=" ")
    error = CommandError(
        ErrorCode.Unauthorized, f"not authorized on {database} to execute command {text}"
    )
    log.info(
        "Checking authorization failed",
        id=20436,
        user=user,
        error={
            "code": error.code,
            "codeName": error.code_name,
            "errmsg": error.message[:_LONGEST_LOGGED],
        },
    )
    return error


def _scalar(value: Any) -> str:
    if isinstance(value, bytes):
        subtype = value.subtype if isinstance(value, Binary) else 0
        if subtype == UUID_SUBTYPE and len(value) == 16:
            return f'UUID("{UUID(bytes=bytes(value))}")'
        return f"BinData({subtype}, {value[:LONGEST].hex().upper()})"
    if isinstance(value, datetime):
        return f"new Date({int(value.timestamp() * 1000)})"
    if isinstance(value, float):
        return f"{value:.1f}" if value.is_integer() else repr(value)
    return plain(value)
