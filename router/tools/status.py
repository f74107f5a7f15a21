"""The command ``mergerouter status``: the status page as text."""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any

import typer

from router.admin.formatting import in_bytes, in_rate, in_reason, in_wait, in_words
from router.config.command_line import Refusal, file_problem
from shard_client.errors import plain_text

_DEFAULT_ADDRESS = "http://127.0.0.1:27022"
_TIMEOUT = 10.0
_LARGEST_ANSWER = 64 * 1024 * 1024
_BAR = 30
_CLEAR = "\x1b[2J\x1b[H"


def status(
    admin: Annotated[
        str, typer.Option("--admin", help="The address of the router's admin port.")
    ] = _DEFAULT_ADDRESS,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="A file with the admin token.")
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--tlsCAFile",
            help="A PEM file with the authorities that issue the router's certificate; otherwise "
            "the system's count.",
        ),
    ] = None,
    invalid_hostnames: Annotated[
        bool,
        typer.Option(
            "--tlsAllowInvalidHostnames",
            help="Accept a certificate for another host, as when the address is 127.0.0.1.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", min=0.2, help="Print again every so many seconds.")
    ] = None,
) -> None:
    """Show what a running router does.

    The lag of each shard, the streams, the clients and the last failures.
    """
    try:
        token = None if token_file is None else token_file.read_text().strip()
        tls = _tls_context(admin, ca_file, invalid_hostnames=invalid_hostnames)
    except OSError as error:
        raise Refusal(file_problem(error, "--token-file")) from error
    except ValueError as error:
        raise Refusal(str(error)) from error
    while True:
        try:
            view = _fetch(admin, token, tls)
        except (OSError, ValueError, HTTPException) as error:
            typer.echo(f"mergerouter status: {_explain(admin, error)}", err=True)
            if watch is None:
                raise typer.Exit(1) from error
        else:
            if watch is not None and not as_json:
                typer.echo(_CLEAR, nl=False)
            typer.echo(json.dumps(view) if as_json else "\n".join(_lines(view)))
        if watch is None:
            return
        time.sleep(watch)


def _tls_context(
    admin: str, ca_file: Path | None, *, invalid_hostnames: bool
) -> ssl.SSLContext | None:
    """Return the TLS context for an address, None for one without TLS; raises ValueError."""
    if admin.startswith("https://"):
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise ValueError(
                f"--tlsCAFile {ca_file} must be a file with certificates in PEM form "
                f"({plain_text(error)})"
            ) from error
        context.check_hostname = not invalid_hostnames
        return context
    if not admin.startswith("http://"):
        raise ValueError(
            f"--admin {admin} is not an address: write http://host:port, such as {_DEFAULT_ADDRESS}"
        )
    if ca_file is not None or invalid_hostnames:
        raise ValueError(f"{admin} is an address without TLS: write https://host:port")
    return None


def _fetch(admin: str, token: str | None, tls: ssl.SSLContext | None) -> dict[str, Any]:
    request = urllib.request.Request(admin.rstrip("/") + "/status.json")  # noqa: S310 (checked)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(  # noqa: S310 (checked)
        request, timeout=_TIMEOUT, context=tls
    ) as reply:
        view: dict[str, Any] = json.loads(reply.read(_LARGEST_ANSWER))
        return view


def _explain(admin: str, error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        if error.code == 401:
            return f"{admin} requires its token: pass --token-file"
        return f"{admin} answers {error.code} {error.reason}"
    if isinstance(error, ValueError | HTTPException):
        return (
            f"{admin} is not the admin port of a router: what answers there is no status. Pass the "
            "port of --admin-port (net.admin.port), not the one for drivers"
        )
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"the certificate at {admin} is not accepted: {reason.verify_message}. Name its "
            "authority with --tlsCAFile; if only the host name differs, pass "
            "--tlsAllowInvalidHostnames"
        )
    if isinstance(reason, ssl.SSLError):
        return f"no TLS connection to {admin}: {reason}. If the port has no TLS, write http://"
    if isinstance(reason, ConnectionError) and not isinstance(reason, ConnectionRefusedError):
        return f"{admin} ends the connection: {reason}. If the port requires TLS, write https://"
    return (
        f"no router answers at {admin}: {plain_text(reason)}. Start the router with --admin-port, "
        "and pass that port's address with --admin"
    )


def _lines(view: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the status as text."""
    ready = f"NOT READY: {'; '.join(view['problems'])}" if view["problems"] else "ready"
    versions = f"mergerouter {view['version']}, MongoDB {view['mongodb_version']}"
    yield f"{view['host']}  {versions}: {ready}"
    yield (
        f"up {in_words(view['uptime'])}, {view['workers']} of {view['workers_expected']} "
        f"processes, {view['connections']} connections, {view['cursors']} cursors on "
        f"{view['streams']} streams ({view['waiting']} wait for a shard)"
    )
    yield (
        f"{view['received_events']:,} events received, {view['delivered_events']:,} delivered; "
        f"buffered {in_bytes(view['buffered_bytes'])} of {in_bytes(view['buffer_limit_bytes'])}; "
        f"CPU {in_words(view['cpu_seconds'])}, memory {in_bytes(view['resident_bytes'])}"
    )
    yield ""
    yield from _lanes(view["lanes"])
    yield from _table(
        "streams",
        ("stream", "namespace", "clients", "events", "slowest shard", "buffered", "pipeline"),
        [
            (
                _number(row, view),
                row["namespace"],
                row["clients"],
                f"{row['events']:,}",
                f"{row['slowestShard']}: {in_reason(row['slowestReason'])}"
                if row["slowestShard"]
                else "",
                in_bytes(row["heldBytes"]),
                row["pipeline"],
            )
            for row in view["stream_rows"]
        ],
    )
    yield from _table(
        "clients",
        ("client", "stream", "namespace", "behind", "idle"),
        [
            (
                row["client"],
                _number(row, view),
                row["namespace"],
                in_words(row["behindSeconds"]),
                "waits" if row["busy"] else in_words(row["idleSeconds"]),
            )
            for row in view["client_rows"]
        ],
    )
    yield from _table(
        "jobs",
        ("job", "follows", "batch", "behind", "events/s", "last error"),
        [
            (
                row["job"],
                row["namespace"],
                "" if row["batch"] is None else row["batch"],
                in_words(row["lag"]) + ", waits for a shard" * row["waits"],
                "" if row["rate"] is None else in_rate(row["rate"]),
                row["error"] or (f"no report for {in_words(row['age'])}" if row["trouble"] else ""),
            )
            for row in view["job_rows"]
        ],
    )
    if view["failures"]:
        yield from ("", "recent failures")
        for row in view["failures"][:10]:
            yield f"  {row['time']}  {row['message']}  {row['attributes']}"


def _lanes(lanes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    width = max((len(lane["target"]) for lane in lanes), default=0)
    for lane in lanes:
        filled = round(lane["reached"] * _BAR)
        bar = "#" * filled + "." * (_BAR - filled)
        behind = "not read" if lane["lag"] is None else f"{in_words(lane['lag'])} behind"
        notes = [lane["error"]] if lane["error"] else []
        notes += [in_wait(reason, count) for reason, count in lane["holds"].items()]
        if lane["history"] is not None:
            notes.append(f"{in_words(lane['history'])} of oplog left")
        yield f"{lane['target']:<{width}}  {bar}  {behind:<14} {'; '.join(notes)}".rstrip()


def _number(row: Mapping[str, Any], view: Mapping[str, Any]) -> str:
    """Return the number of a stream, after that of its worker if there are several."""
    number = "" if row["stream"] is None else str(row["stream"])
    return f"{row['worker']}.{number}" if view["workers_expected"] > 1 else number


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    if not rows:
        return
    cells = [names, *([str(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield from ("", title)
    for row in cells:
        padded = (f"{value:<{width}}" for value, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(padded)).rstrip()
