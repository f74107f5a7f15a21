"""The start parameters (``--setParameter``); their names are mongos's where it has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import create_model

from router.client_limits import ClientLimits
from router.config.problems import Section
from router.parameter import fields_set_by, milliseconds, parameter, parameters_of
from router.stream_settings import StreamSettings


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of a process that concern neither its clients nor its streams; times in seconds."""

    test_commands: bool = parameter(
        "enableTestCommands",
        False,
        "Allows commands that only tests may use, such as configureFailPoint.",
    )
    refresh_users: int = parameter(
        "userCacheInvalidationIntervalSecs",
        30,
        "Time between two readings of the users' privileges, if the router may not ask the config "
        "server whether they have changed; it asks every two seconds, or more often.",
        least=1,
        most=86_400,
    )
    drain_time: float = milliseconds(
        "mongosShutdownTimeoutMillisForSignaledShutdown",
        3.0,
        "Time after SIGTERM in which commands in flight may end.",
        kind=int,
        most=600_000,
    )


_FIELDS: Final[dict[str, Any]] = {
    parameter.name: (parameter.kind, parameter.field)
    for settings in (ProcessSettings, ClientLimits, StreamSettings)
    for parameter in parameters_of(settings).values()
}
_Fields: Any = create_model("_Fields", __base__=Section, __module__=__name__, **_FIELDS)


class Parameters(_Fields):  # type: ignore[misc]
    """``setParameter``: every start parameter by name."""


def settings_of_streams(values: Mapping[str, Any]) -> StreamSettings:
    """Return the stream settings that the parsed parameters set."""
    return StreamSettings(**fields_set_by(values, StreamSettings))
