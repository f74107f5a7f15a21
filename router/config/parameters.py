"""The start parameters (``--setParameter``); their names are mongos's where it has them."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, ValidationError, create_model

from router.client_limits import ClientLimits
from router.config.problems import Section, describe_problems, nearest
from router.parameter import Parameter, fields_set_by, parameters_of
from router.stream_settings import StreamSettings

_OWN: Final = (
    Parameter(
        "enableTestCommands",
        bool,
        False,
        "Allows commands that only tests may use, such as configureFailPoint.",
    ),
    Parameter(
        "userCacheInvalidationIntervalSecs",
        int,
        30,
        "Time between two readings of the users' privileges, if the router may not ask the config "
        "server whether they have changed; it asks every two seconds, or more often.",
        least=1,
        most=86_400,
    ),
    Parameter(
        "mongosShutdownTimeoutMillisForSignaledShutdown",
        int,
        3000,
        "Time after SIGTERM in which commands in flight may end.",
        most=600_000,
    ),
)
PARAMETERS: Mapping[str, Parameter] = {
    each.name: each
    for each in (
        *_OWN,
        *parameters_of(ClientLimits).values(),
        *parameters_of(StreamSettings).values(),
    )
}
"""Every start parameter by name."""


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """Return a parameter's type and its default with its bounds, as a model has them."""
    bounds: dict[str, Any] = {}
    if parameter.kind in (int, float):
        bounds = {"ge": parameter.least, "le": parameter.most}
    if parameter.kind is float:
        bounds["allow_inf_nan"] = False
    return parameter.kind, Field(parameter.default, **bounds)


_FIELDS: Final[dict[str, Any]] = {name: _field(each) for name, each in PARAMETERS.items()}
_Parameters: Final = create_model("Parameters", __base__=Section, **_FIELDS)


def parse_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters by name: those ``given`` parsed, the others at their defaults.

    Raises:
        ValueError: an unknown name or a bad value.
    """
    for name in given:
        if name not in PARAMETERS:
            raise ValueError(f"{name} is not a parameter.{nearest(name, PARAMETERS)}")
    try:
        return _Parameters(**given).model_dump()
    except ValidationError as error:
        raise ValueError(f"parameter {describe_problems(error, _Parameters)}") from error


def settings_of_streams(values: Mapping[str, Any]) -> StreamSettings:
    """Return the stream settings that the parsed parameters set."""
    return StreamSettings(**fields_set_by(values, StreamSettings))
