"""The command ``mergerouter check-config``: read the settings and try what they name."""

import asyncio
import socket
from collections.abc import Iterator, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from router.config.command_line import read_settings
from router.config.settings import Settings
from router.config.tracing import Tracing

if TYPE_CHECKING:
    from shard_client.wire.tls import Certificate

_COLLECTOR_TIMEOUT = 5.0


class Finding(NamedTuple):
    """One thing that was tried; ``problem`` is None if it works."""

    subject: str
    problem: str | None = None
    remark: str = ""


def check_config(
    config: Annotated[
        Path | None, typer.Option("--config", "-f", help="A YAML file; names are mongos's.")
    ] = None,
    configdb: Annotated[
        str | None,
        typer.Option("--configdb", help="The config server: rsName/host:port[,host:port]."),
    ] = None,
    replica_set: Annotated[
        str | None,
        typer.Option("--replicaSet", help="Instead, a replica set: rsName/host:port[,host:port]."),
    ] = None,
    upstream: Annotated[
        str | None, typer.Option("--upstream", help="The mongos: mongodb://host:port.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Read the settings only; connect to nothing.")
    ] = False,
) -> None:
    """Check the settings and all that they name.

    Tries the files, the ports, the cluster and the upstream, and the rights of the router's user
    there, and prints a line for each. The exit status is 0 if all work, else 1.
    """
    flags = {
        "sharding.configDB": configdb,
        "replication.replicaSet": replica_set,
        "upstream": upstream,
    }
    settings = read_settings(flags, config)
    import structlog

    structlog.configure(processors=[_drop])
    failed = False
    for finding in asyncio.run(_check(settings, offline=offline)):
        failed = failed or finding.problem is not None
        mark = "ok  " if finding.problem is None else "FAIL"
        text = finding.problem or finding.remark
        typer.echo(f"{mark} {finding.subject}" + (f": {text}" if text else ""))
    if failed:
        raise typer.Exit(1)


def _drop(_logger: object, _method: str, _event: MutableMapping[str, Any]) -> NoReturn:
    """Drop a log line: the findings show what fails."""
    from structlog import DropEvent

    raise DropEvent


async def _check(settings: Settings, *, offline: bool) -> list[Finding]:
    from router.service import check_servers
    from shard_client.wire.tls import TlsContexts

    findings = [Finding("settings")]
    if settings.seeds is None:
        findings.append(
            Finding("sharding.configDB", "not set: name the config server, rsName/host:port")
        )
    if offline:
        return findings
    if settings.net.tls.enabled:
        findings.append(_certificate(TlsContexts(settings.net.tls.files()).certificate))
    findings += _ports(settings)
    if settings.seeds is not None:
        checks = await check_servers(settings)
        findings += [Finding(each.subject, each.problem, each.remark) for each in checks]
    if settings.tracing.endpoint is not None:
        findings.append(await _collector(settings.tracing, settings.tracing.endpoint))
    return findings


def _certificate(certificate: "Certificate") -> Finding:
    days = (certificate.expires - datetime.now(UTC)).days
    remark = f"{certificate.subject}, valid for {days} more days"
    return Finding("certificate", remark=remark)


def _ports(settings: Settings) -> Iterator[Finding]:
    """Try to bind each port; one that this machine does not have, or that is in use, fails."""
    net, feed = settings.net, settings.feed
    wanted = [("net.port", host, net.port) for host in net.hosts]
    if feed.port is not None:
        wanted.append(("feed.port", feed.bind_ip, feed.port))
    if net.admin.port is not None:
        wanted += [("net.admin.port", host, net.admin.port) for host in net.admin.hosts]
    for name, host, port in wanted:
        subject = f"{name} {host}:{port}"
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
        except OSError as error:
            yield Finding(subject, f"{error.strerror}; does the router run already?")
        else:
            yield Finding(subject)


async def _collector(tracing: Tracing, endpoint: str) -> Finding:
    """Send the collector of traces a request without spans."""
    import aiohttp

    subject = f"tracing.endpoint {endpoint}"
    headers = {"Content-Type": "application/x-protobuf", **tracing.read_headers()}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_COLLECTOR_TIMEOUT)) as session,
            session.post(endpoint, data=b"", headers=headers) as answer,
        ):
            if answer.ok:
                return Finding(subject)
            problem = f"answers {answer.status} {answer.reason}: is that OTLP over HTTP?"
    except (aiohttp.ClientError, TimeoutError) as error:
        problem = f"does not answer: {error or 'no answer within 5 s'}"
    return Finding(subject, problem)
