"""Flags of the command line that set a setting, with the schema's description as their help."""

from typing import Any

import typer

from router.config.problems import fields
from router.config.settings import Settings

FLAGS: dict[str, tuple[str, ...]] = {}
"""The flags of each setting, by its dotted name."""

SETTINGS = dict(fields(Settings))
"""The field of each setting, by its dotted name."""


def flag(setting: str, *names: str, **options: Any) -> Any:
    """Return the option that sets ``setting``; its help is the setting's description and default.

    Args:
        setting: the dotted name.
        names: the flag and its other spellings.
        options: further arguments of ``typer.Option``.
    """
    field = SETTINGS[setting]
    FLAGS[setting] = names
    text = str(field.description)
    default = field.get_default(call_default_factory=True)
    if default and not isinstance(default, bool | dict):
        text = f"{text} Default: {default}."
    return typer.Option(*names, help=text, **options)
