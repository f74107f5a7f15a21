"""The command `mergerouter embedded`."""

import asyncio
import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from embedded.cluster import EmbeddedCluster

READY = "Waiting for connections"
_BAD_OPTIONS = 2


class TlsMode(StrEnum):
    """Which connections use TLS: none, or all."""

    disabled = "disabled"
    require = "requireTLS"


class Version(StrEnum):
    """A version of MongoDB's servers."""

    V6_0 = "6.0"
    V8_2 = "8.2"


def embedded(
    shards: Annotated[int, typer.Option(min=0, max=64, help="Number of shards.")] = 3,
    port: Annotated[int, typer.Option(help="Port of the mongos endpoint; 0 picks a free one.")] = 0,
    server_version: Annotated[
        Version, typer.Option(help="The version of MongoDB that the servers behave as.")
    ] = Version.V6_0,
    noop_interval: Annotated[
        float, typer.Option(min=0.01, help="Seconds between an idle server's no-ops.")
    ] = 10.0,
    oplog_size: Annotated[
        int, typer.Option(min=10, help="Number of entries that each server's oplog keeps.")
    ] = 200_000,
    key_file: Annotated[
        Path | None,
        typer.Option("--keyFile", help="The members' password; clients have to log in."),
    ] = None,
    tls_mode: Annotated[
        TlsMode, typer.Option("--tlsMode", help="requireTLS: all connections use TLS.")
    ] = TlsMode.disabled,
    tls_certificate: Annotated[
        Path | None,
        typer.Option("--tlsCertificateKeyFile", help="The servers' certificate and key."),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option("--tlsCAFile", help="The authorities of clients' certificates."),
    ] = None,
    tls_without_certificates: Annotated[
        bool,
        typer.Option(
            "--tlsAllowConnectionsWithoutCertificates",
            help="Clients need no certificate.",
        ),
    ] = False,
) -> None:
    """Run a small sharded cluster in memory.

    It has no data folder and ends with this process.
    """
    # Imported here, so that the help of all commands is quick.
    import structlog
    import uvloop

    from embedded.access.control import AccessControl
    from embedded.cluster import EmbeddedCluster
    from embedded.server_version import V6_0, V8_2
    from shard_client.errors import plain_text
    from shard_client.wire.authentication import read_key_file
    from shard_client.wire.tls import TlsContexts, TlsFiles

    _log_as_json()
    if (tls_mode is TlsMode.disabled) != (tls_certificate is None):
        _refuse("--tlsMode requireTLS and --tlsCertificateKeyFile work only together: pass both")
    try:
        tls = None
        if tls_certificate is not None:
            files = TlsFiles(
                tls_certificate,
                ca=tls_ca,
                connections_without_certificates=tls_without_certificates,
            )
            tls = TlsContexts(files)
        key = None if key_file is None else read_key_file(key_file).password
    except OSError as error:
        _refuse(f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error))
    except ValueError as error:
        _refuse(str(error))
    cluster = EmbeddedCluster(
        shards,
        port=port,
        server_version=V8_2 if server_version is Version.V8_2 else V6_0,
        noop_interval=noop_interval,
        oplog_size=oplog_size,
        access=AccessControl(key, tls),
    )
    try:
        uvloop.run(_run(cluster))
    except OSError as error:
        structlog.get_logger().error("Cannot start", error=plain_text(error), port=port)
        raise typer.Exit(48) from error


async def _run(cluster: "EmbeddedCluster") -> None:
    import structlog

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        async with cluster:
            structlog.get_logger().info(
                READY,
                mongos=cluster.mongos_address,
                configdb=cluster.configdb,
                shards=cluster.shards,
                pid=os.getpid(),
            )
            await stopping.wait()
    finally:
        structlog.get_logger().info("Stopped")


def _refuse(message: str) -> NoReturn:
    import structlog

    structlog.get_logger().error("Cannot start", error=message)
    raise typer.Exit(_BAD_OPTIONS)


def _log_as_json() -> None:
    import structlog

    structlog.configure(
        processors=[structlog.processors.format_exc_info, _mongodb_line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )


def _mongodb_line(_logger: Any, level: str, event: Any) -> str:
    """Format a log line as MongoDB's servers do: t, s, c, msg, attr."""
    message = event.pop("event")
    line = {
        "t": {"$date": datetime.now(UTC).isoformat(timespec="milliseconds")},
        "s": level[0].upper(),
        "c": "EMBEDDED",
        "msg": message,
        "attr": event,
    }
    return json.dumps(line, default=str)
