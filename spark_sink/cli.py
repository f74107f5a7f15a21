"""`mergerouter job`: follow collections into tables, and look after such a job.

The same commands run on a cluster of Spark's: `spark-submit … spark_sink/cli.py run …`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from spark_sink.errors import OptionError, SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_sink.jobs.job_folder import JobFolder

job = typer.Typer(
    name="job",
    help="Snapshot and follow collections into tables of Parquet files, with Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_USAGE = 2
_DIFFERENT = 1
_DEFAULT_URI = "mongodb://127.0.0.1:27020"


class Table(StrEnum):
    """A table that a job can keep."""

    bronze = "bronze"
    current = "current"
    transactions = "transactions"


class ComparedTable(StrEnum):
    """A table that a job's verify compares."""

    bronze = "bronze"
    current = "current"


class SignalKind(StrEnum):
    """What a signal asks for."""

    execute = "execute-snapshot"
    stop = "stop-snapshot"
    pause = "pause-snapshot"
    resume = "resume-snapshot"


class SnapshotType(StrEnum):
    """Whether the stream waits for a snapshot."""

    incremental = "incremental"
    blocking = "blocking"


Uri = Annotated[
    str,
    typer.Option(
        "--uri",
        envvar="MERGEROUTER_URI",
        show_envvar=True,
        help="The router's connection string. With a password, set the variable instead.",
    ),
]
Out = Annotated[str, typer.Option("--out", help="The job's folder: a path, or a URI of Spark's.")]
Namespaces = Annotated[
    list[str] | None,
    typer.Argument(help="Collections (shop.orders) or databases (shop). Default: all of them."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE: an option of the source. May be repeated."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", help="NAME=VALUE: a setting of Spark. May be repeated."),
]
Tables = Annotated[
    list[Table] | None,
    typer.Option("--table", help="A table to keep. May be repeated. Default: bronze and current."),
]
Verified = Annotated[
    list[ComparedTable] | None,
    typer.Option("--table", help="A table to compare. May be repeated. Default: all it keeps."),
]
Buckets = Annotated[
    int,
    typer.Option("--buckets", min=1, help="Number of parts of a new current table."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@job.command()
def run(
    out: Out,
    namespaces: Namespaces = None,
    uri: Uri = _DEFAULT_URI,
    option: Options = None,
    table: Tables = None,
    buckets: Buckets = 16,
    trigger: Annotated[
        str, typer.Option("--trigger", help="Time from the start of one batch to the next.")
    ] = "10 seconds",
    conf: Settings = None,
) -> None:
    """Read collections, and follow their changes.

    SIGTERM and SIGINT end the job after the batch under way.
    """
    _run(out, namespaces, uri, option, table, buckets, trigger, conf)


@job.command()
def snapshot(
    out: Out,
    namespaces: Namespaces = None,
    uri: Uri = _DEFAULT_URI,
    option: Options = None,
    table: Tables = None,
    buckets: Buckets = 16,
    conf: Settings = None,
) -> None:
    """Read collections once, and end."""
    _run(out, namespaces, uri, option, table, buckets, None, conf)


@job.command()
def signal(
    kind: Annotated[
        SignalKind, typer.Argument(metavar="TYPE", help="What the job is asked to do.")
    ],
    out: Out,
    collections: Annotated[
        list[str] | None,
        typer.Argument(help="Regular expressions of whole names, such as shop.orders."),
    ] = None,
    snapshot_type: Annotated[
        SnapshotType, typer.Option("--type", help="Whether the stream waits for the snapshot.")
    ] = SnapshotType.incremental,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            help='NAME=JSON: read only a part of a collection, such as shop.orders={"open": true}. '
            "May be repeated.",
        ),
    ] = None,
    identifier: Annotated[
        str | None, typer.Option("--id", help="The signal's id, which is taken once.")
    ] = None,
) -> None:
    """Ask a job for a snapshot, or stop, pause or resume one; print the signal's id.

    The job takes the signal with its next batch.
    """
    from spark_sink.signals.channels import send
    from spark_sink.signals.signal import SignalError, signal_of

    data: dict[str, object] = {"type": str(snapshot_type)}
    if collections:
        data["data-collections"] = collections
    if condition:
        data["additional-conditions"] = [
            {"data-collection": name, "filter": text}
            for name, text in _pairs(condition, "--filter").items()
        ]
    document = {"type": str(kind), "data": data, **({"id": identifier} if identifier else {})}
    with _failures():
        try:
            signal_of(identifier or "new", document)
        except SignalError as error:
            raise OptionError(str(error)) from None
        typer.echo(send(_job_in(out).signals, document))


@job.command()
def status(
    out: Out,
    uri: Annotated[
        str | None,
        typer.Option(
            "--uri",
            envvar="MERGEROUTER_URI",
            show_envvar=True,
            help="The router's connection string. Default: none, and no lag is shown.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how far a job has come."""
    from spark_sink.jobs.status import lines_of, status_of

    with _failures():
        found = status_of(out, uri)
        typer.echo(json.dumps(found) if as_json else "\n".join(lines_of(found)))


@job.command()
def offsets(out: Out) -> None:
    """Print the checkpoint's offsets as lines of JSON."""
    with _failures():
        for batch in _job_in(out).batches():
            time = None if batch.committed is None else batch.committed.isoformat()
            line = {"batch": batch.number, "committed": time, "offset": batch.offset}
            typer.echo(json.dumps(line))


@job.command()
def verify(
    out: Out,
    uri: Uri = _DEFAULT_URI,
    table: Verified = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="The cluster time from which on the bronze table is compared, such as "
            "2026-01-31T12:00:00Z. Default: its first event.",
        ),
    ] = None,
    as_json: AsJson = False,
    conf: Settings = None,
) -> None:
    """Compare the tables with the cluster.

    The bronze table is compared with the stream, the current table with the collections. The exit
    status is 1 if there is a difference.
    """
    from spark_sink.jobs.verification import verify_job

    wanted = [str(each) for each in table] if table else None
    with _failures():
        folder = _job_in(out)
        _require_router({"uri": uri})
        with _session("verify", conf) as spark:
            found = verify_job(spark, folder, uri, wanted, since)
    if as_json:
        typer.echo(json.dumps({name: each.to_document() for name, each in found.items()}))
    else:
        for name, each in found.items():
            typer.echo(f"{name}: {each}")
    raise typer.Exit(_DIFFERENT if any(each.count for each in found.values()) else 0)


@job.command()
def compact(out: Out, conf: Settings = None) -> None:
    """Merge the bronze table's small files."""
    from spark_sink.jobs.tables_job import bronze_files

    with _failures():
        folder = _job_in(out)
        last = folder.last_committed()
        if last is None:
            typer.echo("no batch has been committed yet")
            return
        with _session("compact", conf) as spark:
            before, after = bronze_files(spark, folder).compact(last.number)
        typer.echo(f"bronze: {before} files have become {after}")


def _run(
    out: str,
    namespaces: list[str] | None,
    uri: str,
    option: list[str] | None,
    tables: list[Table] | None,
    buckets: int,
    trigger: str | None,
    settings: list[str] | None,
) -> None:
    from spark_sink.jobs.job_folder import JobFolder, JobRecord
    from spark_sink.jobs.running import EndRequest, run_to_end
    from spark_sink.jobs.tables_job import DEFAULT_TABLES, TablesJob, namespace_options

    end = EndRequest()
    end.listen()
    with _failures():
        options = _source_options(option)
        if trigger is None:
            options["snapshotMode"] = "initial_only"
        else:
            options.setdefault("snapshotMode", "initial")
        kept = tuple(map(str, tables or DEFAULT_TABLES))
        chosen = {**namespace_options(namespaces or ()), **options}
        folder = JobFolder(out)
        _require_router({**chosen, "uri": uri})
        folder.begin(JobRecord(tuple(namespaces or ()), chosen, kept), once=trigger is None)
        with _session("run", settings) as spark:
            tables_job = TablesJob(folder, {**chosen, "uri": uri}, kept, buckets)
            code = run_to_end(tables_job.start(spark, trigger), end)
    raise typer.Exit(code)


def _job_in(out: str) -> JobFolder:
    """The folder of an existing job. Raises OptionError."""
    from spark_sink.jobs.job_folder import JobFolder

    folder = JobFolder(out)
    folder.record()
    return folder


@contextmanager
def _session(name: str, settings: list[str] | None) -> Iterator[SparkSession]:
    from spark_sink.session import job_session

    spark = job_session(f"mergerouter job {name}", _pairs(settings, "--conf"))
    try:
        yield spark
    finally:
        spark.stop()


def _require_router(options: dict[str, str]) -> None:
    """Check options and router before Spark takes seconds to start. Raises SourceError."""
    from spark_sink.options import parse_options
    from spark_sink.router_client import RouterClient

    client = RouterClient(parse_options(options))
    try:
        client.require_reachable()
    finally:
        client.close()


@contextmanager
def _failures() -> Iterator[None]:
    """Print the cause of a failure in one line, and end with its exit status."""
    from pyspark.errors import PySparkException

    from spark_sink.java_runtime import JavaNotFoundError
    from spark_sink.jobs.running import cause_of

    try:
        yield
    except (SourceError, PySparkException, JavaNotFoundError, OSError) as error:
        typer.echo(f"error: {cause_of(error)}", err=True)
        raise typer.Exit(_USAGE if isinstance(error, OptionError) else 1) from None


def _source_options(texts: list[str] | None) -> dict[str, str]:
    """The options of the source by their names. Raises OptionError."""
    from spark_sink.options import named_options

    options = named_options(_pairs(texts, "--option"))
    if "uri" in options or "uriFile" in options:
        raise OptionError(
            "--option cannot set the connection string: use --uri, or the variable MERGEROUTER_URI"
        )
    if "signalFolder" in options:
        raise OptionError("--option cannot set signalFolder: a job has its own, for job signal")
    return options


def _pairs(texts: list[str] | None, name: str) -> dict[str, str]:
    pairs = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} has no value: write NAME=VALUE", param_hint=name)
        pairs[key] = value
    return pairs


if __name__ == "__main__":
    job()
