"""`mergerouter job`: writes collections and their changes to tables, and operates such a job.

The same commands run on a Spark cluster: `spark-submit … spark_sink/cli.py run …`.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from spark_sink.errors import OptionError
from spark_sink.jobs.commands import (
    AsJson,
    Command,
    Deletes,
    Flatten,
    Messages,
    Out,
    Rounds,
    Schema,
    Settings,
    at,
    compact,
    failures,
    job_in,
    messages_in,
    pairs_of,
    rebuild,
    schema_in,
    seconds_of,
    seek,
    session,
    source_options,
)
from spark_sink.jobs.stop_request import StopRequest

if TYPE_CHECKING:
    from spark_sink.jobs.job_folder import JobRecord

job = typer.Typer(
    name="job",
    help="Write collections to Delta tables, with Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_DIFFERENT = 1
_DEFAULT_URI = "mongodb://127.0.0.1:27020"


Table = StrEnum("Table", ["bronze", "current", "messages", "transactions"])
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
Namespaces = Annotated[
    list[str] | None,
    typer.Argument(help="Collections (shop.orders) or databases (shop). Default: all of them."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="NAME=VALUE: an option of the source. May be repeated."),
]
Tables = Annotated[
    list[Table] | None,
    typer.Option("--table", help="A table to write. May be repeated. Default: bronze and current."),
]
Verified = Annotated[
    list[ComparedTable] | None,
    typer.Option("--table", help="A table to compare. May be repeated. Default: all."),
]


@job.command(cls=Command)
def run(
    out: Out,
    namespaces: Namespaces = None,
    uri: Uri = _DEFAULT_URI,
    option: Options = None,
    table: Tables = None,
    message: Messages = None,
    schema: Schema = "none",
    deletes: Deletes = "hard",
    flatten: Flatten = False,
    trigger: Annotated[
        str, typer.Option("--trigger", help="Time from the start of one batch to the next.")
    ] = "10 seconds",
    conf: Settings = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=1,
            max=65535,
            help="Offer metrics to Prometheus on this port of 127.0.0.1.",
        ),
    ] = None,
    maintain: Annotated[
        str | None,
        typer.Option(
            "--maintain",
            help="The time from one job compact, within this job, to the next, such as 6h. "
            "Default: never.",
        ),
    ] = None,
    configdb: Annotated[
        str | None,
        typer.Option(
            "--configdb",
            help="Start a router beside the job, on the port of --uri, if none answers there: "
            "the config server, rsName/host:port.",
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option("--upstream", help="With --configdb: the mongos, mongodb://host:port."),
    ] = None,
    router_config: Annotated[
        str | None,
        typer.Option(
            "--router-config",
            help="Instead of --configdb, where the cluster has users or TLS: the router's "
            "configuration file, as for serve --config.",
        ),
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", help="Its folder, if Spark cannot write it to --out."),
    ] = "",
    verify_every: Annotated[
        str | None,
        typer.Option(
            "--verify-every",
            help="Compare the current table with the collections, a slice at a time: the time from "
            "the start of one round to the next, such as 1h.",
        ),
    ] = None,
    verify_rate: Annotated[
        int,
        typer.Option("--verify-rate", min=1, help="Documents a second that a round reads."),
    ] = 1000,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Read documents again that a round finds to differ."),
    ] = False,
) -> None:
    """Write collections and their changes to tables.

    Prints a line for each batch. SIGTERM and SIGINT stop the job after the batch in progress.
    """
    end = StopRequest()
    with failures():
        from spark_sink.jobs.own_router import own_router

        rounds = None
        if repair and verify_every is None:
            raise OptionError("--repair belongs to --verify-every: give both")
        if verify_every is not None:
            rounds = Rounds(seconds_of(verify_every, "--verify-every"), verify_rate, repair)
        interval = None if maintain is None else seconds_of(maintain, "--maintain")
        record = _record(namespaces, option, table, message, schema, deletes, flatten=flatten)
        with own_router(uri, configdb, upstream, router_config):
            _run(end, out, record, uri, trigger, conf, metrics_port, rounds, interval, checkpoint)


@job.command(cls=Command)
def snapshot(
    out: Out,
    namespaces: Namespaces = None,
    uri: Uri = _DEFAULT_URI,
    option: Options = None,
    table: Tables = None,
    message: Messages = None,
    schema: Schema = "none",
    conf: Settings = None,
) -> None:
    """Write collections to tables once, and end."""
    end = StopRequest()
    with failures():
        record = _record(namespaces, option, table, message, schema)
        record.options["snapshotMode"] = "initial_only"
        _run(end, out, record, uri, None, conf)


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
            for name, text in pairs_of(condition, "--filter").items()
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
    spark_settings = pairs_of(conf, "--conf")
    with failures():
        folder = job_in(out)
        require_router({"uri": uri})
        warn_of_unmatched_names({**folder.record().options, "uri": uri})
        with session("verify", spark_settings) as spark:
            found = verify_job(spark, folder, uri, wanted, since, rate=rate)
    if as_json:
        typer.echo(json.dumps({name: each.to_document() for name, each in found.items()}))
    else:
        for name, each in found.items():
            typer.echo(f"{name}: {each}")
    raise typer.Exit(_DIFFERENT if any(each.count or each.failed for each in found.values()) else 0)


for command, name in ((compact, "compact"), (rebuild, "rebuild"), (at, "at"), (seek, "seek")):
    job.command(name=name, cls=Command)(command)


def _record(
    namespaces: list[str] | None,
    option: list[str] | None,
    tables: list[Table] | None,
    message: list[str] | None,
    schema: str,
    deletes: str = "hard",
    *,
    flatten: bool = False,
) -> JobRecord:
    from spark_sink.jobs.job_folder import DEFAULT_TABLES, JobRecord
    from spark_sink.jobs.tables_job import namespace_options

    options = {"snapshotMode": "initial", **source_options(option)}
    if flatten and schema == "none":
        raise OptionError("--flatten is for tables with --schema: give both")
    chosen = tuple(namespaces or ())
    written = tuple(map(str, tables or DEFAULT_TABLES))
    given = {**namespace_options(chosen), **options}
    messages = messages_in(message, written)
    columns = schema_in(schema)
    return JobRecord(chosen, given, written, columns, deletes, flatten, messages=messages)


def _run(
    end: StopRequest,
    out: str,
    record: JobRecord,
    uri: str,
    trigger: str | None,
    settings: list[str] | None,
    metrics_port: int | None = None,
    rounds: Rounds | None = None,
    maintain: float | None = None,
    checkpoint: str = "",
) -> None:
    from spark_sink.jobs.job_folder import JobFolder
    from spark_sink.jobs.maintenance import Schedule
    from spark_sink.jobs.own_router import require_router
    from spark_sink.jobs.progress import JobMetrics, ProgressReport
    from spark_sink.jobs.query_run import quiet_stop, run_until_stopped
    from spark_sink.jobs.rebuilding import leave_out_lost, restore_checkpoint
    from spark_sink.jobs.router_report import RouterReport
    from spark_sink.jobs.tables_job import TablesJob, take_over
    from spark_sink.source.unmatched_names import warn_of_unmatched_names
    from spark_sink.verification.verifier import Verifier

    if rounds is not None and "current" not in record.tables:
        raise OptionError("--verify-every compares the current table: add --table current")
    code = 0
    folder, given = JobFolder(out, checkpoint), {**record.options, "uri": uri}
    record = replace(record, cluster=require_router(given))
    warn_of_unmatched_names(given)
    folder.mend(record)
    with folder.locked(), RouterReport(folder.address, given) as router, quiet_stop(end):
        epoch = take_over(folder)
        restore_checkpoint(folder)
        folder.begin(record, once=trigger is None)
        leave_out_lost(folder, uri)
        with session("run", pairs_of(settings, "--conf")) as spark:
            metrics = JobMetrics()
            verifier = findings = None
            if rounds is not None:
                verifier = Verifier(spark, folder, given, rounds, metrics.add_round)
                findings = verifier.findings
            tables_job = TablesJob(folder, record, uri, findings, metrics, epoch)
            if metrics_port is not None:
                metrics.serve(metrics_port)
            listeners = metrics.add, router.add
            report = ProgressReport(listeners, written=tables_job.written)
            end.begin()
            query = tables_job.start(spark, trigger)
            tend = None if maintain is None else Schedule(folder, maintain)
            with verifier or nullcontext():
                code = run_until_stopped(query, end, (report, router.turn), tend, router.failed)
    raise typer.Exit(code)


if __name__ == "__main__":
    job()
