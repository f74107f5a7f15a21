"""setParameter: the router's own log level at run time; other parameters go to the upstream."""

from collections.abc import Mapping
from typing import Any, Final

from router.commands.answer import PASS_THROUGH, Answer, AnyAnswer
from router.commands.call import Call, Command
from router.commands.elsewhere import change_everywhere_else
from router.commands.fields import GENERIC_FIELDS
from router.config.log_lines import LEVEL, MOST_VERBOSE
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_LEVEL: Final = "logLevel"
_COMPONENTS: Final = "logComponentVerbosity"
LOG_PARAMETERS: Final = (_LEVEL, _COMPONENTS)
"""The parameters that the router sets at run time."""


def log_parameters() -> dict[str, Any]:
    """Return the parameters of the log, for getParameter."""
    return {_LEVEL: LEVEL.verbosity, _COMPONENTS: {"verbosity": LEVEL.verbosity}}


async def set_parameter(call: Call) -> AnyAnswer:
    """Set the log level of all processes of the router; return the one before.

    Raises:
        CommandError: 2 or 14, the value is invalid; 72, a parameter of the upstream is set with it.
    """
    command = call.command
    given = {name: command[name] for name in LOG_PARAMETERS if name in command}
    others = [each for each in command if each not in {call.name, *given, *GENERIC_FIELDS}]
    if not given and call.upstream is not None:
        return PASS_THROUGH
    if others and not given:  # mongos refuses both without a code
        unknown = f"attempted to set unrecognized parameter [{others[0]}]"
        return Answer({"ok": 0.0, "errmsg": f"{unknown}, use help:true to see options "})
    if not given:
        return Answer(
            {"ok": 0.0, "errmsg": "no option found to set, use help:true to see options "}
        )
    if others or len(given) > 1:
        raise CommandError(
            ErrorCode.InvalidOptions,
            f"{' and '.join([*given, *others])} cannot be set by one command: the router sets its "
            "own log level, and the upstream mongos everything else",
        )
    ((name, value),) = given.items()
    verbosity = _level(value) if name == _LEVEL else _of_components(value)
    was = log_parameters()[name]
    LEVEL.verbosity = verbosity
    await change_everywhere_else(call)
    return Answer({"was": was})


def _level(value: Any) -> int:
    if not isinstance(value, bool | int | float) or not value >= 0:
        shown = "null" if value is None else f'"{value}"' if isinstance(value, str) else str(value)
        raise CommandError(ErrorCode.BadValue, f"Invalid value for {_LEVEL}: {_LEVEL}: {shown}")
    return int(min(value, MOST_VERBOSE))


def _of_components(value: Any) -> int:
    if not isinstance(value, Mapping):
        raise CommandError(
            ErrorCode.TypeMismatch,
            f"log component verbosity is not a BSON object: {_COMPONENTS}: {value}",
        )
    for name in value:
        if name != "verbosity":
            raise CommandError(
                ErrorCode.BadValue,
                f"Invalid component name default.{name}: the router has one verbosity for all its "
                "components, so write {verbosity: <number>}",
            )
    verbosity = value.get("verbosity", LEVEL.verbosity)
    if isinstance(verbosity, bool) or not isinstance(verbosity, int | float):
        raise CommandError(
            ErrorCode.BadValue, "Expected default.verbosity to be a number, but found another type"
        )
    return int(min(max(verbosity, 0), MOST_VERBOSE))


COMMANDS = (
    Command(
        ("setParameter",),
        set_parameter,
        "the log level",
        admin_only=True,
        action="setParameter",
    ),
)
