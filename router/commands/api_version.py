"""The versioned API: check a command's API parameters and those of a cursor's getMores."""

from collections.abc import Mapping
from typing import Any

from router.request.field_errors import wrong_type
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

API_FIELDS = ("apiVersion", "apiStrict", "apiDeprecationErrors")


def check_api(name: str, command: Mapping[str, Any], versions: tuple[str, ...]) -> None:
    """Refuse an unknown API version, or a command outside the API version declared as strict.

    Raises:
        CommandError: 322 APIVersionError, 323 APIStrictError, or a field of the wrong type.
    """
    version = command.get("apiVersion")
    if version is not None and not isinstance(version, str):
        raise wrong_type("APIParametersFromClient.apiVersion", version, "string")
    flags = {name: command[name] for name in API_FIELDS[1:] if command.get(name) is not None}
    for field, value in flags.items():
        if not isinstance(value, bool):
            raise wrong_type(f"APIParametersFromClient.{field}", value, "bool")
    if version is None:
        if flags:
            raise CommandError(
                4886600,
                "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
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

    Raises:
        CommandError: 347 APIMismatchError.
    """
    used = api_parameters(command)
    if used != creating:
        raise CommandError(
            ErrorCode.APIMismatchError,
            f"API parameter mismatch: getMore used params {used}, the cursor-creating command "
            f"used {creating}",
        )
