"""Settings of a command line, with errors as the command line reports them."""

from pathlib import Path
from typing import Any

import pydantic
import typer
import yaml

from router.config.problems import describe_problems
from router.config.settings import Settings, load_settings


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """Return the values of ``name=value`` by name; raises typer.BadParameter."""
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise typer.BadParameter(
                f"Illegal option assignment: {assignment!r}", param_hint="--setParameter"
            )
        values[name] = value
    return values


def read_settings(flags: dict[str, Any], config: Path | None) -> Settings:
    """Read the settings from flags, environment and file, and the files that they name.

    Args:
        flags: nested and named as in the file; None counts as not given.
        config: the YAML file.

    Raises:
        typer.BadParameter: a setting is unknown or invalid, or a file cannot be read.
    """
    try:
        settings = load_settings(flags, config)
        settings.net.admin.read_token()
        settings.security.logins()
        return settings
    except pydantic.ValidationError as error:
        raise typer.BadParameter(describe_problems(error, Settings)) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise typer.BadParameter(str(error)) from error
