"""The command ``mergerouter tail``: follow a change stream in the terminal."""

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pymongo
import typer
from bson import json_util
from pymongo.change_stream import ChangeStream
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
)

from router.config.command_line import Refusal, file_problem
from shard_client.errors import ErrorCode, plain_text
from shard_client.wire.authentication import read_secret_file

_DEFAULT_URI = "mongodb://127.0.0.1:27020"
_COLOURS = {
    "insert": "green",
    "update": "yellow",
    "replace": "yellow",
    "delete": "red",
    "invalidate": "magenta",
}
_SHOWN = ("documentKey", "updateDescription", "fullDocument", "to", "operationDescription")
_OPTIONS = json_util.RELAXED_JSON_OPTIONS
_SCHEMES = ("mongodb://", "mongodb+srv://")
_AWAIT_MS = 1000


def read_position(file: Path) -> Mapping[str, Any] | None:
    """Return the token of the last event that was printed, None if there is none yet.

    Raises:
        OSError: the file cannot be read, or its folder not be written.
        ValueError: the file holds no token.
    """
    # A place that cannot be kept is reported before the first event.
    if not file.parent.is_dir():
        raise ValueError(f"--resume-file {file}: its folder does not exist. Create it")
    draft = _draft(file)
    draft.touch()
    draft.unlink()
    if not file.exists():
        return None
    token = None
    with suppress(ValueError):
        token = json_util.loads(file.read_text())
    if not isinstance(token, dict) or "_data" not in token:
        raise ValueError(
            f"--resume-file {file} holds no resume token. Delete it to start at the present"
        )
    return token


def write_position(file: Path, token: Mapping[str, Any]) -> None:
    """Replace the token; the file always holds a whole one. Raises OSError."""
    draft = _draft(file)
    draft.write_text(json_util.dumps(token) + "\n")
    os.replace(draft, file)


def _draft(file: Path) -> Path:
    return file.with_name(file.name + ".new")


def tail(
    namespace: Annotated[
        str, typer.Argument(help="db.collection or db; without it, the whole cluster.")
    ] = "",
    uri: Annotated[
        str, typer.Option("--uri", help="The router's or any mongos's connection string.")
    ] = _DEFAULT_URI,
    uri_file: Annotated[
        Path | None,
        typer.Option(
            "--uri-file",
            help="A file with the connection string instead, so that lists of processes do not "
            "show a password in it.",
        ),
    ] = None,
    pipeline: Annotated[
        str, typer.Option("--pipeline", help="Stages as a JSON array, such as a $match.")
    ] = "[]",
    full_document: Annotated[
        str | None, typer.Option("--full-document", help="updateLookup, whenAvailable or required.")
    ] = None,
    resume_file: Annotated[
        Path | None,
        typer.Option(
            "--resume-file",
            help="Keeps the place of the last event printed; the next run continues there.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document a line, as when stdout is a pipe.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after so many events.")
    ] = None,
) -> None:
    """Follow a change stream in the terminal.

    It ends when it is interrupted, or after --count events.
    """
    as_json = as_json or not sys.stdout.isatty()
    try:
        stages = _stages(pipeline)
        token = None if resume_file is None else read_position(resume_file)
        client = _client(uri, uri_file)
    except OSError as error:
        raise Refusal(file_problem(error, "--resume-file")) from error
    except ValueError as error:
        raise Refusal(str(error)) from error
    options: dict[str, Any] = {"max_await_time_ms": _AWAIT_MS, "full_document": full_document}
    if token is not None:
        options["start_after"] = token
    # SIGTERM ends the stream as Ctrl-C does, so that the cursor is closed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            client,
            _watch(client, namespace, stages, options) as stream,
            suppress(KeyboardInterrupt),  # also while an event is printed
        ):
            number, written = 0, token
            while stream.alive and number != count:
                if (event := stream.try_next()) is not None:
                    number += 1
                    typer.echo(_as_json(event) if as_json else as_text(event), color=None)
                    sys.stdout.flush()
                # The token goes on without events: its place stays in the oplog.
                if resume_file is not None and stream.resume_token not in (None, written):
                    written = stream.resume_token
                    write_position(resume_file, written)
    except BrokenPipeError:
        # The reader of the pipe has ended; nothing may be written when Python closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except PyMongoError as error:
        typer.echo(f"mergerouter tail: {cause_and_remedy(error, resume_file)}", err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        typer.echo(f"mergerouter tail: {file_problem(error, '--resume-file')}", err=True)
        raise typer.Exit(1) from error


def _client(uri: str, uri_file: Path | None) -> pymongo.MongoClient[dict[str, Any]]:
    """Return a client of ``uri``, or of the string in ``uri_file``. Raises Refusal."""
    name = "--uri"
    try:
        if uri_file is not None:
            name = "--uri-file"
            uri = read_secret_file(uri_file).strip()
        if not uri.startswith(_SCHEMES):
            raise Refusal(f"must begin with {' or '.join(_SCHEMES)}", param_hint=name)
        return pymongo.MongoClient(
            uri,
            appname="mergerouter tail",
            serverSelectionTimeoutMS=10_000,
            datetime_conversion="DATETIME_AUTO",
            unicode_decode_error_handler="replace",
        )
    except OSError as error:  # the string's file, or one that the string names
        raise Refusal(file_problem(error, name)) from error
    except (InvalidURI, ConfigurationError) as error:
        raise Refusal(plain_text(error), param_hint=name) from error
    except ValueError as error:
        raise Refusal(str(error), param_hint=name) from error


def cause_and_remedy(error: PyMongoError, resume_file: Path | None = None) -> str:
    """Return the cause and the remedy of an error that ends the stream.

    Args:
        error: the driver's error.
        resume_file: the file with the place from which the stream was to continue, if any.
    """
    if isinstance(error, OperationFailure):
        message = (error.details or {}).get("errmsg") or plain_text(error)
        if error.code == ErrorCode.Unauthorized and "requires authentication" in str(message):
            return (
                "the router requires a login: write the user and the password into the connection "
                "string, as mongodb://user:password@host:port/, in the file of --uri-file "
                f"({message})"
            )
        if error.code == ErrorCode.Unauthorized and "the router's user" not in str(message):
            remedy = "The user in --uri needs the privileges find and changeStream there"
        elif error.code == ErrorCode.AuthenticationFailed:
            remedy = "Check the user, the password and authSource in --uri or --uri-file"
        elif error.code == ErrorCode.ChangeStreamHistoryLost and resume_file is not None:
            remedy = f"Delete {resume_file} to start at the present; events between are lost"
        else:
            return str(message)
        return f"{str(message).rstrip('.')}. {remedy}"
    if isinstance(error, ConnectionFailure):
        return (
            f"no router or mongos answers: {plain_text(error)}. Check host, port and tls in --uri"
        )
    return plain_text(error)


def _stages(pipeline: str) -> list[Any]:
    try:
        stages = json_util.loads(pipeline)
    except ValueError as error:
        raise ValueError(f"--pipeline is not JSON: {error}. Write '[{{\"$match\": …}}]'") from error
    if not isinstance(stages, list):
        raise ValueError('--pipeline is not a JSON array: write [{"$match": …}]')
    return stages


def _watch(
    client: pymongo.MongoClient[dict[str, Any]],
    namespace: str,
    stages: list[Any],
    options: Mapping[str, Any],
) -> ChangeStream[dict[str, Any]]:
    database, _dot, collection = namespace.partition(".")
    if collection:
        return client[database][collection].watch(stages, **options)
    if database:
        return client[database].watch(stages, **options)
    return client.watch(stages, **options)


def _as_json(event: Mapping[str, Any]) -> str:
    return json_util.dumps(event, json_options=_OPTIONS)


def as_text(event: Mapping[str, Any]) -> str:
    """Return one coloured line: time, operation, namespace, key, and what the event holds."""
    at = event.get("clusterTime")
    time = "" if at is None else at.as_datetime().isoformat(timespec="seconds")
    kind = str(event.get("operationType", ""))
    namespace = ".".join(str(part) for part in event.get("ns", {}).values())
    shown = {name: event[name] for name in _SHOWN if event.get(name) is not None}
    key = shown.pop("documentKey", None)
    parts = [
        typer.style(time, dim=True),
        typer.style(f"{kind:<10}", fg=_COLOURS.get(kind, "blue"), bold=True),
        typer.style(namespace, bold=True),
    ]
    if key is not None:
        parts.append(_as_json(key))
    parts += [typer.style(f"{name} ", dim=True) + _as_json(value) for name, value in shown.items()]
    return " ".join(parts)
