"""Fields of a command and the checks of them, with the errors of mongos's parser."""

from collections.abc import Mapping
from typing import Any, Final

from bson.decimal128 import Decimal128

from shard_client.bson.values import type_name
from shard_client.errors import CommandError, ErrorCode


def unknown_field(path: str) -> CommandError:
    """Return the error for an unknown field at ``path``."""
    return CommandError(ErrorCode.IDLUnknownField, f"BSON field '{path}' is an unknown field.")


def missing_field(path: str) -> CommandError:
    """Return the error for a required field at ``path`` that is missing."""
    message = f"BSON field '{path}' is missing but a required field"
    return CommandError(ErrorCode.IDLFailedToParse, message)


def wrong_type(path: str, value: Any, *expected: str) -> CommandError:
    """Return the error for a field of the wrong type; ``expected`` are MongoDB's type names."""
    # The server closes the quote before the bracket.
    types = f"types '[{', '.join(expected)}']" if len(expected) > 1 else f"type '{expected[0]}'"
    return CommandError(
        ErrorCode.TypeMismatch,
        f"BSON field '{path}' is the wrong type '{type_name(value)}', expected {types}",
    )


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


def of_type(command: Mapping[str, Any], name: str, field: str, kind: type, expected: str) -> Any:
    """Return a required field of exactly that type, ``expected`` in errors; raises CommandError."""
    value = required(command, name, field)
    if type(value) is not kind:
        raise wrong_type(f"{name}.{field}", value, expected)
    return value


def text(command: Mapping[str, Any], name: str, field: str) -> str:
    """Return a required string field; raises CommandError."""
    return str(of_type(command, name, field, str, "string"))


def at_least_zero(command: Mapping[str, Any], name: str, field: str) -> int | None:
    """Return an optional non-negative number; raises CommandError 51024, 2 or 14."""
    value = command.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal128):
        raise wrong_type(f"{name}.{field}", value, "long", "int", "decimal", "double")
    number = as_int64(value)
    if number < 0:
        message = f"BSON field '{field}' value must be >= 0, actual value '{number}'"
        raise CommandError(51024, message)
    return number


INT64_END: Final = 2**63
"""The first number that is too large for an integer of 64 bits."""


def as_int64(value: float | Decimal128) -> int:
    """Return a number as servers convert it: the nearest one in range, 0 for NaN.

    Fractions are cut off, but those of decimals are rounded, half to even.
    """
    number: Any = value.to_decimal() if isinstance(value, Decimal128) else value
    if number != number:
        return 0
    number = max(-INT64_END, min(number, INT64_END - 1))
    return round(number) if isinstance(value, Decimal128) else int(number)


API_FIELDS = ("apiVersion", "apiStrict", "apiDeprecationErrors")


def check_api(name: str, command: Mapping[str, Any], versions: tuple[str, ...]) -> None:
    """Refuse an unknown API version, or a command outside the API version declared as strict.

    Raises CommandError: 322 APIVersionError, 323 APIStrictError, or a field of the wrong type.
    """
    version = command.get("apiVersion")
    if version is not None and type(version) is not str:
        raise wrong_type("APIParametersFromClient.apiVersion", version, "string")
    flags = {name: command[name] for name in API_FIELDS[1:] if command.get(name) is not None}
    for field, value in flags.items():
        if not isinstance(value, bool):
            raise wrong_type(f"APIParametersFromClient.{field}", value, "bool")
    if version is None:
        if flags:
            raise CommandError(
                4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion"
            )
        return
    if version == "2":
        raise CommandError(ErrorCode.APIVersionError, "Cannot accept API version 2")
    if version != "1":
        raise CommandError(ErrorCode.APIVersionError, 'API version must be "1"')
    if command.get("apiStrict") and "1" not in versions:
        raise CommandError(
            ErrorCode.APIStrictError,
            f"Provided apiStrict:true, but the command {name} is not in API Version 1. "
            "Information on supported commands and migrations in API Version 1 can be found at "
            "https://dochub.mongodb.org/core/manual-versioned-api",
        )


def api_parameters(command: Mapping[str, Any]) -> str:
    """Return the API fields of a command as mongos prints them, ``{}`` if there are none."""
    shown = []
    for field in API_FIELDS:
        value = command.get(field)
        if isinstance(value, bool):
            shown.append(f"{field}: {str(value).lower()}")
        elif value is not None:
            shown.append(f'{field}: "{value}"')
    return "{ " + ", ".join(shown) + " }" if shown else "{}"


def check_same_api(creating: str, command: Mapping[str, Any]) -> None:
    """Refuse a getMore whose API parameters differ from those that created its cursor.

    Raises CommandError: 347 APIMismatchError.
    """
    used = api_parameters(command)
    if used != creating:
        raise CommandError(
            ErrorCode.APIMismatchError,
            f"API parameter mismatch: getMore used params {used}, the cursor-creating command "
            f"used {creating}",
        )
