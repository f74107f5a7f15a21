"""Check a command's fields, with the errors of mongos's parser or by asking the upstream."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bson.decimal128 import Decimal128

from router.commands.call import Call
from router.request.accepted import OF_ANY_COMMAND, as_int64
from router.request.field_errors import missing_field, negative, unknown_field, wrong_type
from router.request.stages import brief
from shard_client.error_codes import RESUMABLE_CODES, ErrorCode
from shard_client.errors import CommandError, NetworkError

# Fields that any command can carry besides its own; mongos gives them no command-specific meaning.
GENERIC_FIELDS = frozenset(
    {
        "$audit", "$client", "$clusterTime", "$configServerState", "$configTime", "$db",
        "$oplogQueryData", "$queryOptions", "$readPreference", "$replData", "$topologyTime",
        "allowImplicitCollectionCreation", "apiDeprecationErrors", "apiStrict", "apiVersion",
        "autocommit", "clientOperationKey", "comment", "coordinator", "databaseVersion",
        "helloOk", "lsid", "maxTimeMS", "maxTimeMSOpOnly", "mayBypassWriteBlocking",
        "readConcern", "shardVersion", "startOrContinueTransaction", "startTransaction", "stmtId",
        "tracking_info", "txnNumber", "writeConcern",
    }
)  # fmt: skip


def check_known(command: Mapping[str, Any], name: str, known: frozenset[str]) -> None:
    """Refuse unknown fields; raises CommandError 40415."""
    for field in command:
        if field != name and field not in known and field not in GENERIC_FIELDS:
            raise unknown_field(f"{name}.{field}")


def required(command: Mapping[str, Any], name: str, field: str) -> Any:
    """Return a required field, which must not be null; raises CommandError 40414."""
    value = command.get(field)
    if value is None:
        raise missing_field(f"{name}.{field}")
    return value


def text(command: Mapping[str, Any], name: str, field: str) -> str:
    """Return a required string field; raises CommandError."""
    value = required(command, name, field)
    if not isinstance(value, str):
        raise wrong_type(f"{name}.{field}", value, "string")
    return value


def whole_number(value: Any, path: str) -> int:
    """Return a number of any numeric type as an integer; raises CommandError."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise wrong_type(path, value, "long", "int", "decimal", "double")
    return as_int64(value)


def at_least_zero(command: Mapping[str, Any], name: str, field: str) -> int | None:
    """Return an optional non-negative number; raises CommandError 51024, 2 or 14."""
    value = command.get(field)
    if value is None:
        return None
    number = whole_number(value, f"{name}.{field}")
    if number < 0:
        raise negative(field, number)
    return number


async def check_generic_fields(call: Call) -> None:
    """Check the time limit and the read concern of a command that the router answers.

    Raises:
        CommandError: mongos's error; without an upstream, and before a login, which opens no
            connection to it, that the router does not know a value.
    """
    unknown = {
        name: call.command[name]
        for name, accepts in OF_ANY_COMMAND.items()
        if name in call.command and not accepts(call.command[name])
    }
    login = call.client.login
    if unknown and call.upstream is not None and (login is None or login.user is not None):
        await let_upstream_check(call, {"ping": 1, **unknown})
    elif unknown:
        raise CommandError(ErrorCode.BadValue, f"mergerouter does not know {brief(unknown)}")


async def let_upstream_check(call: Call, command: Mapping[str, Any]) -> None:
    """Let the upstream refuse a command with fields that only it can check.

    It does not know the cursor of a getMore, and says so if the fields are valid. If it does not
    answer, they have no effect.

    Raises:
        CommandError: a field is invalid.
    """
    assert call.upstream is not None
    try:
        with suppress(NetworkError):
            await call.client.link_to(call.upstream).command(call.database, command)
    except CommandError as error:
        if error.code != ErrorCode.CursorNotFound and error.code not in RESUMABLE_CODES:
            raise
