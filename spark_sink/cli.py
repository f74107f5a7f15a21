"""`mergerouter job`: writes collections and their changes to tables, and operates such a job.

The same commands run on a Spark cluster: `spark-submit … spark_sink/cli.py run …`. Each imports
what it needs: those without Spark are fast, and signals are handled before Spark is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from difflib import get_close_matches
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from spark_sink.errors import OptionError, SourceError
from spark_sink.jobs.job_settings import JobSettings, load_job_settings, pairs_of, seconds_of
from spark_sink.jobs.stop_request import StopRequest
from spark_sink.options.declared import argument
from spark_sink.options.parsers import DEFAULT_URI, cluster_time

if TYPE_CHECKING:
    from spark_sink.jobs.job_folder import JobFolder

_DIFFERENT, _USAGE, _LATE = 1, 2, 3
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all errors of a command line, which typer does not export."""


class JobCommand(TyperCommand):
    """A command whose errors are one line: the argument, the cause and the remedy."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises typer.Exit for wrong ones."""
        try:
            return super().parse_args(ctx, args)
        except _USAGE_ERROR as error:
            typer.echo(f"error: {_wrong(error, ctx.command_path)}", err=True)
            raise typer.Exit(_USAGE) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises typer.Exit with the status of a failure."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, typer.Exit) or (cause := _cause(error)) is None:
                raise
            typer.echo(f"error: {cause}", err=True)
            raise typer.Exit(_USAGE if isinstance(error, OptionError) else 1) from None

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the summary for the list of commands, whose lines wrap, as a whole."""
        return (self.help or "").partition("\n")[0].strip()


def _wrong(error: Any, command: str) -> str:
    """Return what is wrong with a command's arguments, and the remedy."""
    known = getattr(error, "possibilities", None)
    if known is not None:
        close = get_close_matches(error.option_name, known, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"{command} --help lists the options."
        return f"{error.option_name} is not an option. {hint}"
    param = getattr(error, "param", None)
    message = str(error.message).replace("Input should", "must")
    if param is None:
        return f"{message.removesuffix('.')}: {command} --help lists the arguments"
    if message:
        return f"{param.metavar or param.opts[0]}: {message.removeprefix('Value error, ')}"
    return f"{param.opts[0]} is missing. It is {param.help[0].lower()}{param.help[1:]}"


def _cause(error: Exception) -> str | None:
    """Return the cause of a failure on one line; None for a defect."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from spark_sink.jobs.failure_texts import cause_of
    except ModuleNotFoundError as missing:
        error = missing
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name} is missing: install the extra spark (docs/install.md)"
    expected = isinstance(error, SourceError | PySparkException | Py4JError | OSError)
    return cause_of(error) if expected else None


job = typer.Typer(
    name="job",
    help="Write collections to Delta tables, with Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
ComparedTable = StrEnum(
    "ComparedTable",
    ["bronze", "current", "messages", "transactions", "notifications", "quarantine"],
)
SignalKind = Literal["execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot"]

Out = Annotated[str, typer.Option(help="The job's folder: a path, or a URI of Spark's.")]
Uri = Annotated[
    str | None,
    typer.Option(
        envvar="MERGEROUTER_URI",
        show_envvar=True,
        help="The router's connection string. With a password, set the variable instead.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE: a setting of Spark. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_FILE = "A YAML file with settings: these flags without --, and collections."


def with_settings(command: Callable[[JobSettings], None]) -> Callable[..., None]:
    """Give a command the flag of each setting of a job, and --config.

    Flags come before the file.
    """

    @wraps(command)
    def run(config: str | None, **given: Any) -> None:
        chosen = {name: value for name, value in given.items() if value not in (None, [])}
        command(load_job_settings(chosen, config))

    file = _parameter("config", str, typer.Option("--config", help=_FILE))
    fields = [field for field in JobSettings.model_fields.items() if field[0] != "collections"]
    options = [*(_flag(*field) for field in fields), file]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _flag(name: str, field: FieldInfo) -> Parameter:
    """Return the parameter of a command that is the flag of a setting."""
    lists, kind = (tuple, dict), get_origin(field.annotation)
    of_flag: Any = list[str] if kind in lists else bool if field.annotation is bool else str
    if name == "namespaces":
        return _parameter(name, of_flag, typer.Argument(help=field.description))
    return _parameter(name, of_flag, typer.Option(f"--{field.alias}", help=field.description))


def _parameter(name: str, kind: Any, option: Any) -> Parameter:
    annotation = Annotated[kind | None, option]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _spark_settings(conf: list[str] | None) -> dict[str, str]:
    """Return the settings of --conf by name. Raises OptionError."""
    return argument(pairs_of, conf or [], "--conf")


def _job_in(out: str) -> JobFolder:
    """Return the folder of an existing job. Raises OptionError."""
    from spark_sink.jobs.job_folder import JobFolder

    folder = JobFolder(out)
    folder.record()
    return folder


@job.command(cls=JobCommand)
@with_settings
def run(settings: JobSettings) -> None:
    """Write collections and their changes to tables.

    Prints a line for each batch. SIGTERM and SIGINT stop the job after the batch in progress.
    """
    stop = StopRequest()
    from spark_sink.running import run_jobs

    run_jobs(settings, stop)


@job.command(cls=JobCommand)
@with_settings
def snapshot(settings: JobSettings) -> None:
    """Write collections to tables once, and end."""
    stop = StopRequest()
    from spark_sink.running import run_jobs

    run_jobs(settings, stop, once=True)


@job.command(cls=JobCommand)
@with_settings
def check(settings: JobSettings) -> None:
    """Check the settings of a job, its folder and the router; say what `job run` would do."""
    from spark_sink.running import check_jobs

    typer.echo("\n".join(check_jobs(settings)))


@job.command(cls=JobCommand)
def signal(
    kind: Annotated[SignalKind, typer.Argument(metavar="TYPE", help="What the job must do.")],
    out: Out,
    collections: Annotated[
        list[str] | None,
        typer.Argument(help="Regular expressions of whole names, such as shop.orders."),
    ] = None,
    snapshot_type: Annotated[
        Literal["incremental", "blocking"],
        typer.Option("--type", help="Whether the stream waits for the snapshot."),
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
    from spark_sink.snapshot.signal import SignalError, signal_of
    from spark_sink.snapshot.signal_channels import send

    data: dict[str, object] = {"type": snapshot_type}
    if collections:
        data["data-collections"] = collections
    if condition:
        data["additional-conditions"] = [
            {"data-collection": name, "filter": text}
            for name, text in argument(pairs_of, condition, "--filter").items()
        ]
    document = {"type": kind, "data": data, **({"id": identifier} if identifier else {})}
    try:
        signal_of(identifier or "new", document)
    except SignalError as error:
        raise OptionError(str(error)) from None
    typer.echo(send(_job_in(out).signals, document))


@job.command(cls=JobCommand)
def status(
    out: Out,
    checkpoint: Annotated[str, typer.Option(help="Its folder, if it has been moved.")] = "",
    uri: Uri = None,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a job, and how far it is behind the router of --uri."""
    from spark_sink.jobs.job_folder import JobFolder
    from spark_sink.jobs.report.status import lines_of, status_of

    report = status_of(JobFolder(out, checkpoint), uri)
    typer.echo(json.dumps(report) if as_json else "\n".join(lines_of(report)))


@job.command(cls=JobCommand)
def wait(
    out: Out,
    to: Annotated[
        str,
        typer.Option(
            help="now, a cluster time such as 2026-01-31T12:00:00Z or 1769860800,3 (a session's "
            "operationTime), or a resume token.",
        ),
    ] = "now",
    timeout: Annotated[str, typer.Option(help="The longest wait, such as 10m.")] = "10m",
    uri: Uri = DEFAULT_URI,
) -> None:
    """Wait until all tables have all events up to a time, which the job writes meanwhile.

    The exit status is 3 if they do not within the timeout. Only `now` needs a router.
    """
    from spark_sink.jobs.report.waiting import position_to_reach, wait_until

    seconds, folder = argument(seconds_of, timeout, "--timeout"), _job_in(out)
    try:
        wait_until(folder, position_to_reach(to, uri or DEFAULT_URI, "--to"), seconds)
    except TimeoutError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(_LATE) from None
    typer.echo("all tables have all events up to then")


@job.command(cls=JobCommand)
def offsets(out: Out) -> None:
    """Print the checkpoint's offsets as lines of JSON."""
    for batch in _job_in(out).checkpoint.batches():
        time = None if batch.committed is None else batch.committed.isoformat()
        typer.echo(json.dumps({"batch": batch.number, "committed": time, "offset": batch.offset}))


@job.command(cls=JobCommand)
def verify(
    out: Out,
    uri: Uri = DEFAULT_URI,
    table: Annotated[
        list[ComparedTable] | None,
        typer.Option(help="A table to compare. May be repeated. Default: all."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="The cluster time from which on tables are compared with the stream, such as "
            "2026-01-31T12:00:00Z. Default: their first event.",
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most rows and keys of current a second that are compared with the "
            "collections. Default: as many as Spark's cores compare.",
        ),
    ] = None,
    as_json: AsJson = False,
    conf: Conf = None,
) -> None:
    """Verify the tables, and say what was compared with what.

    The rows of each table are compared with the checksum of those that were written, bronze,
    messages and transactions with the stream, and current with the collections. The exit status is
    1 if there is a difference.
    """
    from spark_sink.jobs.report.progress import printed_progress
    from spark_sink.source.option_checks import warn_of_unmatched_names
    from spark_sink.spark_session import job_session
    from spark_sink.stream.router_client import require_cluster
    from spark_sink.verification.verify_job import verify_job

    begin = None if since is None else argument(cluster_time, since, "--since")
    given, folder, uri = _spark_settings(conf), _job_in(out), uri or DEFAULT_URI
    require_cluster({"uri": uri})
    warn_of_unmatched_names(folder.record().source_options(uri))
    with printed_progress(), job_session("verify", given) as spark:
        outcomes = verify_job(spark, folder, uri, table, begin, rate=rate)
    if as_json:
        typer.echo(json.dumps({name: outcome.to_document() for name, outcome in outcomes.items()}))
    else:
        for name, outcome in outcomes.items():
            typer.echo(f"{name}: {outcome}")
    raise typer.Exit(
        _DIFFERENT if any(outcome.count or outcome.failed for outcome in outcomes.values()) else 0
    )


@job.command(cls=JobCommand)
def compact(out: Out) -> None:
    """Merge small files, and delete those that no reader needs any more.

    The job may run meanwhile.
    """
    from spark_sink.jobs.compaction import compact_tables
    from spark_sink.jobs.report.progress import printed_progress

    line = None
    with printed_progress():
        for line in compact_tables(_job_in(out)):
            typer.echo(line)
    if line is None:
        typer.echo("no batch is committed yet")


@job.command(cls=JobCommand)
def rebuild(
    out: Out,
    to: Annotated[
        str | None,
        typer.Option(help="With --into: the cluster time, such as 2026-01-31T12:00:00Z."),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(help="With --to: the folder for a current table of that time."),
    ] = None,
    conf: Conf = None,
) -> None:
    """Make what is lost again: the current table from bronze, the checkpoint from all tables.

    With --to, make a current table as of an earlier time, in another folder, from bronze alone.
    """
    from spark_sink.jobs.history.newest_batch import restore_checkpoint
    from spark_sink.jobs.history.point_in_time import UNREAD_THEN
    from spark_sink.jobs.history.restoration import lacks_current, rebuild_table
    from spark_sink.jobs.report.progress import printed_progress
    from spark_sink.snapshot.unread import unread_names
    from spark_sink.spark_session import job_session

    given, folder = _spark_settings(conf), _job_in(out)
    if (to is None) != (into is None):
        raise OptionError("--to and --into belong together: give both, or none")
    time = None if to is None else argument(cluster_time, to, "--to")
    with ExitStack() as held, printed_progress():
        if time is None:
            held.enter_context(folder.locked())
        if time is not None or lacks_current(folder):
            spark = held.enter_context(job_session("rebuild", given))
            table = rebuild_table(spark, folder, time, into or "")
            typer.echo(f"{table.address} has {table.log.count()} documents")
            if time is not None and (names := unread_names(table.state.unread_or_lost)):
                typer.echo(f"it lacks documents of {names}: {UNREAD_THEN}", err=True)
        if time is None:
            last, is_whole = restore_checkpoint(folder)
            if last.query:
                goes_on = "continues after" if is_whole else "repeats"
                typer.echo(f"the checkpoint {goes_on} batch {last.number} of the tables")


@job.command(cls=JobCommand)
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
    from spark_sink.jobs.history.point_in_time import versions_at
    from spark_sink.jobs.report.progress import printed_progress

    with printed_progress():
        batch, cut, states = versions_at(_job_in(out), argument(cluster_time, time, "TIME"))
    versions = {name: version for name, (version, _) in states.items()}
    if as_json:
        before = [cut.time, cut.inc]
        typer.echo(json.dumps({"batch": batch, "before": before, "versions": versions}))
        return
    typer.echo(f"all events before {cut.as_datetime().isoformat()} ({cut.time},{cut.inc})")
    for name, version in versions.items():
        typer.echo(f"{name:<13} version {version}")


@job.command(cls=JobCommand)
def seek(
    out: Out,
    to: Annotated[
        str,
        typer.Option(help="A cluster time, such as 2026-01-31T12:00:00Z, or a token."),
    ],
) -> None:
    """Leave out all events before a later position of the stream.

    The next start of the job continues there, and reads the collections again. Stop the job first.
    """
    from spark_sink.jobs.history.left_out_events import seek as seek_to

    folder = _job_in(out)
    with folder.locked():
        typer.echo(f"the job continues at {seek_to(folder, to)}")


if __name__ == "__main__":
    job()
