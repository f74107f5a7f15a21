"""The command ``mergerouter check-config``: read the settings and try what they name."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from router.config.command_line import ConfigFile, read_settings, with_flags
from router.config.settings import Settings
from router.config.tracing import Tracing

if TYPE_CHECKING:
    from router.catalog.server_checks import Check, Severity

_COLLECTOR_TIMEOUT = 5.0


@with_flags("sharding.configDB", "replication.replicaSet", "upstream")
def check_config(
    *,
    flags: dict[str, Any],
    config: ConfigFile = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Read the settings only; connect to nothing.")
    ] = False,
) -> None:
    """Check the settings and all that they name.

    Tries files, ports, cluster and upstream, and the rights of the router's user there, and prints
    a line for each. The exit status is 0 if all work, else 1, and 2 if the settings are invalid.
    """
    settings = read_settings(flags, config)
    import structlog

    # The checks show what fails, so the log shows nothing.
    structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
    failed = False
    for check in asyncio.run(_check(settings, offline=offline)):
        failed = failed or check.is_problem
        mark = "FAIL" if check.is_problem else "ok  "
        typer.echo(f"{mark} {check.subject}" + (f": {check.text}" if check.text else ""))
    if failed:
        raise typer.Exit(1)


async def _check(settings: Settings, *, offline: bool) -> "list[Check]":
    from router.assembly import check_servers
    from router.catalog.server_checks import Check
    from shard_client.wire.tls import TlsContexts

    checks = [Check("settings")]
    if settings.seeds is None:
        missing = "not set: name the config server, rsName/host:port"
        checks.append(Check("sharding.configDB", severity="error", text=missing))
    if offline:
        return checks
    if settings.net.tls.enabled:
        certificate = TlsContexts(settings.net.tls.files()).certificate
        days = (certificate.expires - datetime.now(UTC)).days
        remark = f"{certificate.subject}, valid for {days} more days"
        checks.append(Check("certificate", text=remark))
    checks += [check async for check in _ports(settings)]
    if settings.seeds is not None:
        checks += await check_servers(settings)
    if (endpoint := settings.tracing.endpoint) is not None:
        problem = await _collector(settings.tracing, endpoint)
        severity: Severity = "error" if problem else "ok"
        checks.append(Check(f"tracing.endpoint {endpoint}", severity=severity, text=problem))
    return checks


async def _ports(settings: Settings) -> "AsyncIterator[Check]":
    """Try to bind each port; it is a problem if the machine lacks it or it is in use."""
    from router.accepting_port import bind
    from router.catalog.server_checks import Check

    net, feed = settings.net, settings.feed
    wanted = [("net.port", host, net.port) for host in net.hosts]
    if feed.port is not None:
        wanted.append(("feed.port", feed.bind_ip, feed.port))
    if net.admin.port is not None:
        wanted += [("net.admin.port", host, net.admin.port) for host in net.admin.hosts]
    for name, host, port in wanted:
        subject = f"{name} {host}:{port}"
        try:
            for bound in await bind([host], port):
                bound.close()
        except OSError as error:
            text = f"{error.strerror}; does the router run already?"
            yield Check(subject, severity="error", text=text)
        else:
            yield Check(subject)


async def _collector(tracing: Tracing, endpoint: str) -> str:
    """Send the collector of traces a request without spans; return the problem, or ""."""
    import aiohttp

    headers = {"Content-Type": "application/x-protobuf", **tracing.read_headers()}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_COLLECTOR_TIMEOUT)) as session,
            session.post(endpoint, data=b"", headers=headers) as answer,
        ):
            if answer.ok:
                return ""
            return f"answers {answer.status} {answer.reason}: is that OTLP over HTTP?"
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"does not answer: {error or 'no answer within 5 s'}"
