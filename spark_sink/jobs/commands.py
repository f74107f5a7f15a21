"""Commands that maintain the tables of a job, and what all commands have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from spark_sink.errors import OptionError, SourceError
from spark_sink.jobs.job_settings import pairs_of

_Value = TypeVar("_Value")

Out = Annotated[str, typer.Option("--out", help="The job's folder: a path, or a URI of Spark's.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", help="NAME=VALUE: a setting of Spark. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class Command(TyperCommand):
    """A command whose errors are one line: the argument, the cause and the remedy."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises typer.BadParameter for a wrong value."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            message = error.message.removeprefix("Value error, ").replace("Input should", "must")
            raise Refusal(message, param=error.param, param_hint=error.param_hint) from None

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the summary for the list of commands, whose lines wrap, as a whole."""
        return (self.help or "").partition("\n")[0].strip()


class Refusal(typer.BadParameter):
    """An argument that cannot be used."""

    def show(self, file: Any = None) -> None:
        """Print the message without the command's usage, which would come first."""
        name = self.param_hint or (self.param.opts[0] if self.param is not None else "")
        text = f"{name}: {self.message}" if self.message else f"{name} is missing"
        if not self.message and (meaning := getattr(self.param, "help", "")):
            text += f". It is {meaning[0].lower()}{meaning[1:]}"
        typer.echo(f"error: {text}", file=file, err=file is None)


def parsed(parse: Callable[[Any], _Value], given: Any, name: str) -> _Value:
    """Return what a parser makes of an argument. Raises Refusal; `name` is the option's."""
    try:
        return parse(given)
    except ValueError as error:
        raise Refusal(str(error), param_hint=name) from None


def spark_settings(conf: list[str] | None) -> dict[str, str]:
    """Return the settings of --conf by name. Raises Refusal."""
    return parsed(pairs_of, conf or [], "--conf")


if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_sink.jobs.job_folder import JobFolder

_USAGE = 2


def job_in(out: str) -> JobFolder:
    """Return the folder of an existing job. Raises OptionError."""
    from spark_sink.jobs.job_folder import JobFolder

    folder = JobFolder(out)
    folder.record()
    return folder


@contextmanager
def session(name: str, settings: dict[str, str]) -> Iterator[SparkSession]:
    """Open a session of Spark for a command, with Spark's settings."""
    from spark_sink.session.spark_session import job_session

    spark = job_session(f"mergerouter job {name}", settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def failures() -> Iterator[None]:
    """Print the cause of a failure on one line, and exit with its status."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from spark_sink.jobs.query_run import cause_of
        from spark_sink.session.java_runtime import JavaNotFoundError

        expected = (SourceError, PySparkException, Py4JError, JavaNotFoundError, OSError)
        try:
            yield
        except expected as error:
            typer.echo(f"error: {cause_of(error)}", err=True)
            raise typer.Exit(_USAGE if isinstance(error, OptionError) else 1) from None
    except ModuleNotFoundError as error:
        text = f"the package {error.name} is missing: install the extra spark (docs/install.md)"
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(1) from None


def compact(out: Out) -> None:
    """Merge small files, and delete those that no reader needs any more.

    The job may run meanwhile.
    """
    from spark_sink.jobs.maintenance import compact_tables
    from spark_sink.jobs.progress import WorkReport

    is_empty = True
    with failures():
        for line in compact_tables(job_in(out), WorkReport()):
            is_empty = False
            typer.echo(line)
    if is_empty:
        typer.echo("no batch is committed yet")


def rebuild(
    out: Out,
    to: Annotated[
        str | None,
        typer.Option("--to", help="With --into: the cluster time, such as 2026-01-31T12:00:00Z."),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", help="With --to: the folder for a current table of that time."),
    ] = None,
    conf: Settings = None,
) -> None:
    """Make what is lost again: the current table from bronze, the checkpoint from all tables.

    With --to, make a current table as of an earlier time, in another folder, from bronze alone.
    """
    from spark_sink.jobs.point_in_time import UNREAD_THEN, time_from_text, unread_names
    from spark_sink.jobs.progress import WorkReport
    from spark_sink.jobs.rebuilding import (
        lacks_current,
        rebuild_at,
        rebuild_current,
        restore_checkpoint,
    )

    given = spark_settings(conf)
    with failures(), ExitStack() as held:
        folder = job_in(out)
        if (to is None) != (into is None):
            raise OptionError("--to and --into belong together: give both, or none")
        if to is not None and into is not None:
            time = time_from_text(to, "--to")
            with session("rebuild", given) as spark:
                table = rebuild_at(spark, folder, time, into, WorkReport())
            typer.echo(f"{table.address} has {table.count()} documents")
            if names := unread_names(table.state.lacking):
                typer.echo(f"it lacks documents of {names}: {UNREAD_THEN}", err=True)
            return
        held.enter_context(folder.locked())
        lost = lacks_current(folder)
        if lost:
            with session("rebuild", given) as spark:
                table = rebuild_current(spark, folder, WorkReport())
            typer.echo(f"{table.address} has {table.count()} documents")
        if restore_checkpoint(folder) is None and not lost:
            raise OptionError(f"the job in {folder.address} has lost nothing: start the job")


def at(
    time: Annotated[
        str, typer.Argument(help='Such as 2026-01-31T12:00:00Z, or "seconds,increment".')
    ],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Print the versions of the tables that together are the cluster at a time.

    They are the newest ones that have nothing from after it, and every transaction whole.
    """
    from spark_sink.jobs.point_in_time import time_from_text, versions_at
    from spark_sink.jobs.progress import WorkReport

    with failures():
        found = versions_at(job_in(out), time_from_text(time, "TIME"), WorkReport())
    document = {"batch": found.batch, "before": [found.cut.time, found.cut.inc]}
    if as_json:
        typer.echo(json.dumps({**document, "versions": dict(found.versions)}))
        return
    moment = found.cut.as_datetime().isoformat()
    typer.echo(f"all events before {moment} ({found.cut.time},{found.cut.inc})")
    for name, version in found.versions.items():
        typer.echo(f"{name:<13} version {version}")


def seek(
    out: Out,
    to: Annotated[
        str,
        typer.Option("--to", help="A cluster time, such as 2026-01-31T12:00:00Z, or a token."),
    ],
) -> None:
    """Leave out all events before a later position of the stream.

    The next start of the job continues there, and reads the collections again. Stop the job first.
    """
    from spark_sink.jobs.rebuilding import seek as seek_to

    with failures(), job_in(out).locked():
        typer.echo(f"the job continues at {seek_to(job_in(out), to)}")
