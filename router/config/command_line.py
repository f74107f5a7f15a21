"""Settings of a command line, with errors as the command line reports them."""

from pathlib import Path
from typing import Any

import pydantic
import typer
from typer.core import TyperCommand

from router.config.problems import describe_problems, wanted_value
from router.config.settings import Settings, load_settings
from shard_client.wire.tls import TlsContexts


class SubCommand(TyperCommand):
    """A sub-command whose errors name the value to pass where one is missing or wrong."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raises typer.BadParameter for a missing or wrong value."""
        last = args[-1] if args else ""
        for option in self.params:
            flag = getattr(option, "is_flag", False) or getattr(option, "count", False)
            if last in option.opts and not flag:
                needed = getattr(option, "help", None) or option.name
                raise typer.BadParameter(f"it has no value. Pass one: {needed}", param_hint=last)
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            raise _explained(error) from error


def _explained(error: typer.BadParameter) -> typer.BadParameter:
    """Return the error with the value that is wrong and what to pass, where pydantic found it."""
    if not isinstance(error.__cause__, pydantic.ValidationError):
        return error
    problem = error.__cause__.errors()[0]
    wanted = wanted_value(problem)
    if wanted is None:
        return error
    message = f"must be {wanted}, not {problem['input']!r}. {getattr(error.param, 'help', '')}"
    return typer.BadParameter(message.rstrip(), ctx=error.ctx, param=error.param)


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """Return the values of ``name=value`` by name; raises typer.BadParameter."""
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise typer.BadParameter(
                f"{assignment!r} has no value: write name=value", param_hint="--setParameter"
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
        settings.tracing.read_headers()
        if settings.net.tls.enabled:
            TlsContexts(settings.net.tls.files())
        return settings
    except pydantic.ValidationError as error:
        raise typer.BadParameter(describe_problems(error, Settings)) from error
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
