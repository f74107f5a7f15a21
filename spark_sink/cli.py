"""`mergerouter job`: writes collections and their changes to tables, and operates such a job.

The same commands run on a Spark cluster: `spark-submit … spark_sink/cli.py run …`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from functools import partial, wraps
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, get_origin

import typer
from pydantic.fields import FieldInfo

from spark_sink.errors import OptionError
from spark_sink.jobs.commands import (
    AsJson,
    Command,
    Out,
    Settings,
    at,
    compact,
    failures,
    job_in,
    parsed,
    rebuild,
    seek,
    session,
    spark_settings,
)
from spark_sink.jobs.job_settings import JobSettings, load_job_settings, pairs_of, seconds_of
from spark_sink.jobs.stop_request import StopRequest

job = typer.Typer(
    name="job",
    help="Write collections to Delta tables, with Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_DIFFERENT, _LATE = 1, 3
_DEFAULT_URI = "mongodb://127.0.0.1:27020"


ComparedTable = StrEnum(
    "ComparedTable",
    ["bronze", "current", "messages", "transactions", "notifications", "quarantine"],
)
SignalKind = Literal["execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot"]
SnapshotType = Literal["incremental", "blocking"]

Uri = Annotated[
    str,
    typer.Option(
        "--uri",
        envvar="MERGEROUTER_URI",
        show_envvar=True,
        help="The router's connection string. With a password, set the variable instead.",
    ),
]
Verified = Annotated[
    list[ComparedTable] | None,
    typer.Option("--table", help="A table to compare. May be repeated. Default: all."),
]


_FILE = "A YAML file with settings: these flags' names without dashes, and collections."


def with_settings(
    command: Callable[[JobSettings, StopRequest], int], *, handles_signals: bool = True
) -> Callable[..., None]:
    """Give a command the flag of each setting of a job, and --config; it returns its exit status.

    Flags come before the file. A command that `handles_signals` ends when its request says so.
    """

    @wraps(command)
    def run(config: str | None, **given: Any) -> None:
        end = StopRequest(handles_signals=handles_signals)
        with failures():
            found = {name: each for name, each in given.items() if each not in (None, [])}
            code = command(load_job_settings(found, config), end)
        raise typer.Exit(code)

    file = _parameter("config", str, typer.Option("--config", help=_FILE))
    fields = [each for each in JobSettings.model_fields.items() if each[0] != "collections"]
    options = [*(_flag(*each) for each in fields), file]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    return run


def _flag(name: str, field: FieldInfo) -> Parameter:
    """Return the parameter of a command that is the flag of a setting."""
    lists, kind = (tuple, dict), get_origin(field.annotation)
    of_flag: Any = list[str] if kind in lists else bool if field.annotation is bool else str
    if name == "namespaces":
        return _parameter(name, of_flag, typer.Argument(help=field.description))
    option = typer.Option(f"--{field.alias}", help=field.description)
    return _parameter(name, of_flag, option)


def _parameter(name: str, kind: Any, option: Any) -> Parameter:
    annotation = Annotated[kind | None, option]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@job.command(cls=Command)
@with_settings
def run(settings: JobSettings, end: StopRequest) -> int:
    """Write collections and their changes to tables.

    Prints a line for each batch. SIGTERM and SIGINT stop the job after the batch in progress.
    """
    from spark_sink.job import run_jobs

    return run_jobs(settings, end)


@job.command(cls=Command)
@with_settings
def snapshot(settings: JobSettings, end: StopRequest) -> int:
    """Write collections to tables once, and end."""
    from spark_sink.job import run_jobs

    return run_jobs(settings, end, once=True)


@job.command(cls=Command)
@partial(with_settings, handles_signals=False)
def check(settings: JobSettings, _end: StopRequest) -> int:
    """Check the settings of a job, its folder and the router; say what `job run` would do."""
    from spark_sink.job import check_jobs

    typer.echo("\n".join(check_jobs(settings)))
    return 0


@job.command(cls=Command)
def signal(
    kind: Annotated[SignalKind, typer.Argument(metavar="TYPE", help="What the job must do.")],
    out: Out,
    collections: Annotated[
        list[str] | None,
        typer.Argument(help="Regular expressions of whole names, such as shop.orders."),
    ] = None,
    snapshot_type: Annotated[
        SnapshotType, typer.Option("--type", help="Whether the stream waits for the snapshot.")
    ] = "incremental",
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            help='NAME=JSON: read only a part of a collection, such as shop.orders={"open": true}. '
            "May be repeated.",
        ),
    ] = None,
    identifier: Annotated[
        str | None, typer.Option("--id", help="The signal's id, which is processed once.")
    ] = None,
) -> None:
    """Request a snapshot from a job, or stop, pause or resume one; print the signal's id.

    The job processes the signal with its next batch.
    """
    from spark_sink.signals.channels import send
    from spark_sink.signals.signal import SignalError, signal_of

    data: dict[str, object] = {"type": snapshot_type}
    if collections:
        data["data-collections"] = collections
    if condition:
        data["additional-conditions"] = [
            {"data-collection": name, "filter": text}
            for name, text in parsed(pairs_of, condition, "--filter").items()
        ]
    document = {"type": kind, "data": data, **({"id": identifier} if identifier else {})}
    with failures():
        try:
            signal_of(identifier or "new", document)
        except SignalError as error:
            raise OptionError(str(error)) from None
        typer.echo(send(job_in(out).signals, document))


@job.command(cls=Command)
def status(
    out: Out,
    uri: Annotated[
        str | None,
        typer.Option(
            "--uri",
            envvar="MERGEROUTER_URI",
            show_envvar=True,
            help="The router's connection string. Default: none; the lag is not shown.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a job."""
    from spark_sink.jobs.status import lines_of, status_of

    with failures():
        found = status_of(out, uri)
        typer.echo(json.dumps(found) if as_json else "\n".join(lines_of(found)))


@job.command(cls=Command)
def wait(
    out: Out,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="now, a cluster time such as 2026-01-31T12:00:00Z or 1769860800,3 (a session's "
            "operationTime), or a resume token.",
        ),
    ] = "now",
    timeout: Annotated[
        str, typer.Option("--timeout", help="The longest wait, such as 10m.")
    ] = "10m",
    uri: Uri = _DEFAULT_URI,
) -> None:
    """Wait until all tables have all events up to a time, which the job writes meanwhile.

    The exit status is 3 if they do not within the timeout. Only `now` needs a router.
    """
    from spark_sink.jobs.status import position_to_reach, wait_until

    seconds = parsed(seconds_of, timeout, "--timeout")
    with failures():
        folder = job_in(out)
        try:
            wait_until(folder, position_to_reach(to, uri, "--to"), seconds)
        except TimeoutError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(_LATE) from None
    typer.echo("all tables have all events up to then")


@job.command(cls=Command)
def offsets(out: Out) -> None:
    """Print the checkpoint's offsets as lines of JSON."""
    with failures():
        for batch in job_in(out).batches():
            time = None if batch.committed is None else batch.committed.isoformat()
            line = {"batch": batch.number, "committed": time, "offset": batch.offset}
            typer.echo(json.dumps(line))


@job.command(cls=Command)
def verify(
    out: Out,
    uri: Uri = _DEFAULT_URI,
    table: Verified = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="The cluster time from which on tables are compared with the stream, such as "
            "2026-01-31T12:00:00Z. Default: their first event.",
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate",
            min=1,
            help="The most rows and keys of current a second that are compared with the "
            "collections. Default: as many as Spark's cores compare.",
        ),
    ] = None,
    as_json: AsJson = False,
    conf: Settings = None,
) -> None:
    """Verify the tables, and say what was compared with what.

    The rows of each table are compared with the checksum of those that were written, bronze,
    messages and transactions with the stream, and current with the collections. The exit status is
    1 if there is a difference.
    """
    from spark_sink.jobs.own_router import require_router
    from spark_sink.source.unmatched_names import warn_of_unmatched_names
    from spark_sink.verification.job import verify_job

    wanted = table
    given = spark_settings(conf)
    with failures():
        folder = job_in(out)
        require_router({"uri": uri})
        warn_of_unmatched_names({**folder.record().options, "uri": uri})
        with session("verify", given) as spark:
            found = verify_job(spark, folder, uri, wanted, since, rate=rate)
    if as_json:
        typer.echo(json.dumps({name: each.to_document() for name, each in found.items()}))
    else:
        for name, each in found.items():
            typer.echo(f"{name}: {each}")
    raise typer.Exit(_DIFFERENT if any(each.count or each.failed for each in found.values()) else 0)


for command, name in ((compact, "compact"), (rebuild, "rebuild"), (at, "at"), (seek, "seek")):
    job.command(name=name, cls=Command)(command)


if __name__ == "__main__":
    job()
