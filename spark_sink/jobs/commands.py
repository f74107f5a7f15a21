"""Commands that maintain the tables of a job, and what all commands have in common."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from spark_sink.errors import OptionError, SourceError
from spark_sink.jobs.arguments import AsJson, Out, Settings, pairs_of

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
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from spark_sink.jobs.query_run import cause_of
    from spark_sink.session.java_runtime import JavaNotFoundError

    try:
        yield
    except (SourceError, PySparkException, Py4JError, JavaNotFoundError, OSError) as error:
        typer.echo(f"error: {cause_of(error)}", err=True)
        raise typer.Exit(_USAGE if isinstance(error, OptionError) else 1) from None


def compact(out: Out) -> None:
    """Merge small files, and delete those that no reader needs any more.

    The job may run meanwhile.
    """
    from spark_sink.jobs.maintenance import compact_tables

    with failures():
        lines = compact_tables(job_in(out))
    typer.echo("\n".join(lines) or "no batch is committed yet")


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
    from spark_sink.jobs.point_in_time import time_from_text
    from spark_sink.jobs.rebuilding import (
        lacks_current,
        rebuild_at,
        rebuild_checkpoint,
        rebuild_current,
    )

    spark_settings = pairs_of(conf, "--conf")
    with failures():
        folder = job_in(out)
        if (to is None) != (into is None):
            raise OptionError("--to and --into belong together: give both, or none")
        if to is not None and into is not None:
            time = time_from_text(to, "--to")
            with session("rebuild", spark_settings) as spark:
                table = rebuild_at(spark, folder, time, into)
            typer.echo(f"{table.address} has {table.count()} documents")
            return
        lost = lacks_current(folder)
        if lost:
            with session("rebuild", spark_settings) as spark:
                table = rebuild_current(spark, folder)
            typer.echo(f"{table.address} has {table.count()} documents")
        if folder.query() is None or not lost:
            last = rebuild_checkpoint(folder)
            typer.echo(f"the checkpoint is that of batch {last}")


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

    with failures():
        found = versions_at(job_in(out), time_from_text(time, "TIME"))
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
    from spark_sink.jobs.seeking import seek as seek_to

    with failures():
        typer.echo(f"the job continues at {seek_to(job_in(out), to)}")
