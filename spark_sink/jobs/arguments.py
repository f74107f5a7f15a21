"""The arguments of `mergerouter job`: their errors are one line each, without the usage."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from spark_sink.errors import OptionError

Out = Annotated[str, typer.Option("--out", help="The job's folder: a path, or a URI of Spark's.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", help="NAME=VALUE: a setting of Spark. May be repeated."),
]
Schema = Annotated[
    str,
    typer.Option(
        "--schema",
        help="The columns of the current table: infer (from the documents), none (the documents "
        "as JSON and BSON), or a file with a schema, as Spark's DDL or JSON.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Deletes(StrEnum):
    """What a delete does to the row of a current table."""

    hard = "hard"
    soft = "soft"


DeletedRows = Annotated[
    Deletes,
    typer.Option(
        "--deletes", help="Whether a delete removes a row (hard), or marks it as _deleted (soft)."
    ),
]


class Rounds(NamedTuple):
    """How a running job verifies its table: seconds from round to round, documents a second."""

    every: float
    rate: int
    repair: bool


Flatten = Annotated[
    bool,
    typer.Option(
        "--flatten",
        help="With --schema: make columns such as address_city of the fields of documents in "
        "documents.",
    ),
]


class Command(TyperCommand):
    """A command whose errors are one line: the argument, the cause and the remedy."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises typer.BadParameter for a wrong value."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            message = error.message.removeprefix("Value error, ").replace("Input should", "must")
            raise Refusal(message, param=error.param, param_hint=error.param_hint) from None


class Refusal(typer.BadParameter):
    """An argument that cannot be used."""

    def show(self, file: Any = None) -> None:
        """Print the message without the command's usage, which would come first."""
        name = self.param_hint or (self.param.opts[0] if self.param is not None else "")
        text = f"{name}: {self.message}" if self.message else f"{name} is missing"
        if not self.message and (meaning := getattr(self.param, "help", "")):
            text += f". It is {meaning[0].lower()}{meaning[1:]}"
        typer.echo(f"error: {text}", file=file, err=file is None)


def pairs_of(texts: list[str] | None, name: str) -> dict[str, str]:
    """Return the values of NAME=VALUE by name. Raises Refusal; `name` is the option's."""
    pairs = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Refusal(f"{text!r} has no value: write NAME=VALUE", param_hint=name)
        pairs[key] = value
    return pairs


def schema_in(given: str) -> str:
    """Return "none", "infer", or the schema in the file of --schema. Raises OptionError."""
    if given in ("none", "infer"):
        return given
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"--schema must be infer, none, or a file that can be read, not {given!r}", error
        ) from None


def seconds_of(text: str, name: str) -> float:
    """Return the seconds of a time such as 90s, 30m, 1h or 1d. Raises Refusal."""
    match = re.fullmatch(r"(\d+)\s*([smhd])\w*", text.strip())
    if not match or not int(match[1]):
        raise Refusal(f"{text!r} is no time: write 90s, 30m, 1h or 1d", param_hint=name)
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def source_options(texts: list[str] | None) -> dict[str, str]:
    """Return the options of the source by their names. Raises OptionError."""
    from spark_sink.options.stream_options import named_options

    options = named_options(pairs_of(texts, "--option"))
    if "uri" in options or "uriFile" in options:
        raise OptionError(
            "--option cannot set the connection string: use --uri, or the variable MERGEROUTER_URI"
        )
    if "signalFolder" in options:
        raise OptionError("--option cannot set signalFolder: a job has its own, for job signal")
    return options
