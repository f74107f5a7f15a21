"""getParameter and setParameter: the start parameters, and the log level at run time."""

from collections.abc import Mapping
from typing import Any, Final

from router.commands.call import Call
from router.commands.command import answers
from router.commands.other_workers import change_all_processes
from router.commands.reply_bodies import PASS_THROUGH, Answer, AnyAnswer
from router.config.log_lines import LEVEL, MOST_VERBOSE
from router.peers.messages import SetVerbosity
from router.request.field_checks import GENERIC_FIELDS, unknown_field, wrong_type
from shard_client.errors import CommandError, ErrorCode

_ASK_TIMEOUT = 5.0
_NOTHING_FOUND = "no option found to get"
_REPLY_FIELDS = frozenset({"ok", "operationTime", "$clusterTime", "lastCommittedOpTime"})
_FLAGS = ("showDetails", "allParameters")

# Parameters that mongod has and mongos lacks.
_MONGOD_ALONE = frozenset({"featureCompatibilityVersion"})


@answers("getParameter", help="start parameters", admin_only=True, action="getParameter")
async def get_parameter(call: Call) -> AnyAnswer:
    """Return the parameters named in the command, or all for ``*`` and ``allParameters``.

    Other parameters than the router's own come from the upstream. Without an upstream, those named
    come from a server of the cluster: feature flags are the same on all servers. Raises
    CommandError: 40415 or 14, the flags are invalid; or the server cannot answer.
    """
    asked = call.command[call.name]
    details, everything = _flags(asked)
    known: dict[str, Any] = {**call.process.settings.parameters, **log_parameters()}
    ours = known if everything else {n: known[n] for n in call.command if n in known}
    values = dict(ours)
    if details:
        values = {name: _detailed(name, value) for name, value in ours.items()}
    no_others = {call.name, *known, *LOG_PARAMETERS, *GENERIC_FIELDS, *_MONGOD_ALONE}
    names = [] if everything else [name for name in call.command if name not in no_others]
    if names or everything:
        values = {**await _ask_others(call, names), **values}
    if not values:  # mongos refuses without a code
        return Answer({"ok": 0.0, "errmsg": _NOTHING_FOUND})
    return Answer(values)


def _flags(asked: object) -> tuple[bool, bool]:
    """Return whether the client asks for details, and whether it asks for all parameters."""
    if not isinstance(asked, Mapping):
        return False, asked == "*"
    for name, value in asked.items():
        if name not in _FLAGS:
            raise unknown_field(f"getParameter.{name}")
        if value is not None and not isinstance(value, bool | int | float):
            raise wrong_type(
                f"getParameter.{name}", value, "bool", "long", "int", "decimal", "double"
            )
    details, everything = (bool(asked.get(name)) for name in _FLAGS)
    return details, everything


def _detailed(name: str, value: Any) -> dict[str, Any]:
    at_start = name not in LOG_PARAMETERS or name == "logLevel"
    return {
        "value": value,
        "settableAtRuntime": name in LOG_PARAMETERS,
        "settableAtStartup": at_start,
    }


async def _ask_others(call: Call, names: list[str]) -> dict[str, Any]:
    """Return a server's values of ``names``, or all of the upstream's if ``names`` is empty."""
    command = {call.name: call.command[call.name], **dict.fromkeys(names, 1)}
    cluster = call.process.cluster
    try:
        if (link := call.upstream_link) is not None:
            reply = await link.command("admin", command)
        elif names:
            shards = (await cluster.shards()).hosts
            target = next(iter(shards), cluster.catalog)
            host = shards.get(target)
            reply = await cluster.command(target, "admin", command, _ASK_TIMEOUT, host)
        else:
            return {}
    except CommandError as error:
        if error.message == _NOTHING_FOUND:
            return {}
        raise
    return {name: value for name, value in reply.items() if name not in _REPLY_FIELDS}


_LEVEL: Final = "logLevel"
_COMPONENTS: Final = "logComponentVerbosity"
LOG_PARAMETERS: Final = (_LEVEL, _COMPONENTS)
"""The parameters that the router sets at run time."""


def log_parameters() -> dict[str, Any]:
    """Return the parameters of the log, for getParameter."""
    return {_LEVEL: LEVEL.verbosity, _COMPONENTS: {"verbosity": LEVEL.verbosity}}


@answers("setParameter", help="the log level", admin_only=True, action="setParameter")
async def set_parameter(call: Call) -> AnyAnswer:
    """Set the log level of all processes of the router; return the one before.

    Raises CommandError: 2 or 14, the value is invalid; 72, a parameter of the upstream is set with
    it.
    """
    command = call.command
    settings = {name: command[name] for name in LOG_PARAMETERS if name in command}
    others = [name for name in command if name not in {call.name, *settings, *GENERIC_FIELDS}]
    if not settings and call.upstream is not None:
        return PASS_THROUGH
    if others and not settings:  # mongos refuses both without a code
        unknown = f"attempted to set unrecognized parameter [{others[0]}]"
        return Answer({"ok": 0.0, "errmsg": f"{unknown}, use help:true to see options "})
    if not settings:
        return Answer(
            {"ok": 0.0, "errmsg": "no option found to set, use help:true to see options "}
        )
    if others or len(settings) > 1:
        raise CommandError(
            ErrorCode.InvalidOptions,
            f"{' and '.join([*settings, *others])} cannot be set by one command: the router sets "
            "its own log level, and the upstream mongos everything else",
        )
    ((name, value),) = settings.items()
    verbosity = _level(value) if name == _LEVEL else _of_components(value)
    was = log_parameters()[name]
    LEVEL.verbosity = verbosity
    await change_all_processes(call, SetVerbosity(verbosity))
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
    return int(min(verbosity, MOST_VERBOSE)) if verbosity > 0 else 0  # also for NaN
