"""Settings from environment variables, such as ``MERGEROUTER_NET__PORT``."""

from collections.abc import Collection, Mapping
from typing import Any

import yaml

from router.config.problems import nearest

PREFIX = "MERGEROUTER_"
"""The beginning of every variable that is a setting."""

_DOT = "__"


def variable(setting: str) -> str:
    """Return the name of the variable that sets ``setting``, a dotted name as in the file."""
    return PREFIX + setting.replace(".", _DOT).upper()


def read_environment(
    environment: Mapping[str, str], settings: Collection[str], maps: Mapping[str, Collection[str]]
) -> dict[str, Any]:
    """Return the settings in the environment by dotted name.

    A variable that is no setting is ignored if its name has no two underscores in a row and
    resembles no setting: Kubernetes sets MERGEROUTER_PORT in every pod if there is a service of
    that name.

    Args:
        environment: all variables.
        settings: the dotted names of all settings.
        maps: the settings that are maps, with their known keys. Such a setting is a YAML or JSON
            map in one variable, or one variable for each key (``MERGEROUTER_SETPARAMETER__NAME``).

    Raises:
        ValueError: a variable names no setting, or a map is not valid; the message names it.
    """
    known = {variable(name): name for name in settings}
    keys = {variable(f"{name}.{key}"): (name, key) for name, kept in maps.items() for key in kept}
    found: dict[str, Any] = {}
    for written, value in environment.items():
        name = written.upper()
        if not name.startswith(PREFIX):
            continue
        if name in keys:
            outer, key = keys[name]
            found.setdefault(outer, {})[key] = value
        elif name in known:
            setting = known[name]
            if setting in maps:
                found.setdefault(setting, {}).update(_map(written, value))
            else:
                found[setting] = value
        else:
            names = [each for each in (*known, *keys) if (_DOT in each) == (_DOT in name)]
            near = nearest(name, names, required=len(PREFIX))
            if near or _DOT in name:
                raise ValueError(f"the environment variable {written} is not a setting.{near}")
    return found


def _map(name: str, text: str) -> dict[str, Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"the environment variable {name} must be a map, as in {{name: value}}")
    return value
