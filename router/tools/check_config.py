"""The command ``mergerouter check-config``: read the settings and try what they name."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, MutableMapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import aiohttp
import structlog
import typer

from router.catalog.cluster import CONFIG
from router.catalog.replica_set_checks import ReplicaSetChecks
from router.config.command_line import read_settings
from router.config.parameters import stream_limits
from router.config.settings import Settings
from router.config.tracing import Tracing
from router.service import cluster_of
from router.upstream_mongos import UpstreamMongos, parse_upstream
from shard_client.errors import CommandError
from shard_client.wire.access import Access
from shard_client.wire.tls import Certificate, TlsContexts

_MOST_SKEW = 60.0
_COLLECTOR_TIMEOUT = aiohttp.ClientTimeout(total=5)
_MONGOS = "isdbgrid"
"""The ``msg`` in a mongos's hello."""


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
    upstream: Annotated[
        str | None, typer.Option("--upstream", help="The mongos: mongodb://host:port.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Read the settings only; connect to nothing.")
    ] = False,
) -> None:
    """Check the settings, the ports, and the connections to the cluster and the upstream.

    Prints a line for each and ends with status 0 if all work, else with 1.
    """
    settings = read_settings({"sharding": {"configDB": configdb}, "upstream": upstream}, config)
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
    """Drop a log line: the findings tell what fails."""
    raise structlog.DropEvent


async def _check(settings: Settings, *, offline: bool) -> list[Finding]:
    findings = [Finding("settings")]
    if settings.sharding.config_db is None:
        findings.append(
            Finding("sharding.configDB", "not set: name the config server, rsName/host:port")
        )
    if offline:
        return findings
    tls = None
    if settings.net.tls.enabled:
        contexts = TlsContexts(settings.net.tls.files())
        findings.append(_certificate(contexts.certificate))
        tls = contexts if settings.net.tls.towards_cluster else None
    findings += _ports(settings)
    if settings.sharding.config_db is not None:
        findings += [each async for each in _cluster(settings, tls)]
    if settings.upstream is not None:
        findings += await _upstream(settings, settings.upstream, tls)
    if settings.tracing.endpoint is not None:
        findings.append(await _collector(settings.tracing, settings.tracing.endpoint))
    return findings


def _certificate(certificate: Certificate) -> Finding:
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


async def _cluster(settings: Settings, tls: TlsContexts | None) -> AsyncIterator[Finding]:
    limits = stream_limits(settings.parameters)
    cluster = cluster_of(settings, replace(limits, open_timeout=limits.connect_timeout), tls=tls)
    checks = ReplicaSetChecks(cluster)
    try:
        results = await checks.results(patience=None)
        for target, check in results.items():
            subject = "config server" if target == CONFIG else f"shard {target}"
            if not check.answers:
                yield Finding(
                    subject,
                    f"{check.error}. Check that its members run and have a primary, that this "
                    "machine reaches them under the names in its configuration (rs.conf()), and "
                    "the name of the set",
                )
            elif check.oldest is None:
                yield Finding(
                    subject,
                    remark=f"answers, but its oplog cannot be read ({check.error}): metrics will "
                    "not tell when history is about to be lost",
                )
            else:
                yield Finding(subject)
        time = cluster.clock.time
        if time is not None:
            skew = abs(cluster.wall() - time.time)
            problem = None
            if skew > _MOST_SKEW:
                problem = f"differ by {skew:.0f} s: synchronise the machines' clocks"
            yield Finding("clocks of cluster and router", problem)
    finally:
        await checks.close()
        await cluster.close()


async def _upstream(settings: Settings, uri: str, tls: TlsContexts | None) -> list[Finding]:
    """Try the connection to the upstream and, if the router has a user, its login there."""
    user = settings.security.logins().upstream
    subject = f"upstream {uri}"
    mongos = UpstreamMongos(parse_upstream(uri), access=Access(user, tls=tls))
    try:
        connection = await mongos.connect()
    except CommandError as error:
        return [Finding(subject, str(error))]
    connection.abort()
    if connection.hello.get("msg") != _MONGOS:
        return [Finding(subject, "answers, but is no mongos: name a mongos of the cluster")]
    if user is None:
        return [Finding(subject)]
    login = f"login on the upstream as {user.user}"
    try:
        connection = await mongos.connect_as_router()
    except CommandError as error:
        remedy = "Check security.user, authSource and the password there"
        return [Finding(subject), Finding(login, f"{error}. {remedy}")]
    connection.abort()
    return [Finding(subject), Finding(login)]


async def _collector(tracing: Tracing, endpoint: str) -> Finding:
    """Send the collector of traces a request without spans."""
    subject = f"tracing.endpoint {endpoint}"
    headers = {"Content-Type": "application/x-protobuf", **tracing.read_headers()}
    try:
        async with (
            aiohttp.ClientSession(timeout=_COLLECTOR_TIMEOUT) as session,
            session.post(endpoint, data=b"", headers=headers) as answer,
        ):
            if answer.ok:
                return Finding(subject)
            problem = f"answers {answer.status} {answer.reason}: does it take OTLP over HTTP there?"
    except (aiohttp.ClientError, TimeoutError) as error:
        problem = f"does not answer: {error or 'no answer within 5 s'}"
    return Finding(subject, problem)
