"""The command line: ``mergerouter serve``, and the sub-commands of other packages."""

import re
import sys
from collections.abc import Callable, Collection
from importlib.metadata import (
    EntryPoint,
    PackageNotFoundError,
    entry_points,
    requires,
    version,
)
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
import uvloop

from router.client_limits import raise_descriptor_limit
from router.config.command_line import SubCommand, parse_assignments, read_settings
from router.config.flags import flag
from router.config.log_lines import configure_logging
from router.config.problems import nearest
from router.process import run_until_signalled
from router.workers.supervisor import WorkerFailedError
from shard_client.allocation import collect_less_often, keep_freed_memory

log = structlog.get_logger()

_GROUP = "mergerouter.commands"
OWN_COMMANDS = (
    EntryPoint("serve", "router.cli:serve", _GROUP),
    EntryPoint("status", "router.tools.status:status", _GROUP),
    EntryPoint("tail", "router.tools.tail:tail", _GROUP),
    EntryPoint("check-config", "router.tools.check_config:check_config", _GROUP),
)
"""The router's own sub-commands; those of other packages are entry points."""

_FOR_ALL = ("--help", "--install-completion", "--show-completion")
_NO_CONFIG_SERVER = (
    "the cluster's config server is missing. Pass --configdb rsName/host:port[,host:port], "
    "or set sharding.configDB in the file that --config names."
)
_NETWORK_FAILURE = 48
"""The exit status of a mongos that cannot listen."""
_USAGE = 2
"""The exit status after a command line that cannot be understood."""


def main() -> None:
    """Run the sub-command that the command line names."""
    app = typer.Typer(
        name="mergerouter",
        help="Merges the change streams of a sharded MongoDB cluster; speaks mongos's protocol.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,
    )
    app.callback()(_options)
    points = {point.name: point for point in (*entry_points(group=_GROUP), *OWN_COMMANDS)}
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    if wanted is not None and wanted not in points and not wanted.startswith("-"):
        known = ", ".join(sorted(points))
        hint = nearest(wanted, points)
        typer.echo(f"{wanted} is not a command.{hint} The commands are {known}.", err=True)
        raise SystemExit(_USAGE)
    for point in points.values():
        if wanted not in (None, point.name, *_FOR_ALL):
            continue  # Import only the sub-command that runs.
        command = load_command(point)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name)
        else:
            app.command(point.name, cls=SubCommand)(command)
    app()


def load_command(point: EntryPoint) -> Callable[..., Any]:
    """Return the function of a sub-command, or the group of several.

    If a package of its extras is not installed, return a function that prints how to install it.
    """
    missing = [name for name in packages_of(point.extras) if not _is_installed(name)]
    if not missing:
        command: Callable[..., Any] = point.load()
        return command
    remedy = f"pip install 'mergerouter[{','.join(point.extras)}]'"

    def explain() -> None:
        typer.echo(
            f"mergerouter {point.name} needs {', '.join(missing)}, not installed here. "
            f"Run: {remedy}",
            err=True,
        )
        raise typer.Exit(1)

    explain.__doc__ = "Needs " + remedy.replace("[", r"\[")
    return explain


def packages_of(extras: Collection[str]) -> list[str]:
    """Return the names of the packages that the given extras of mergerouter add."""
    found = []
    for requirement in requires("mergerouter") or ():
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if extra and name and extra[1] in extras:
            found.append(name[0])
    return found


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mergerouter {version('mergerouter')}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Merge the change streams of a sharded MongoDB cluster; speak mongos's protocol."""


def serve(
    configdb: Annotated[str | None, flag("sharding.configDB", "--configdb")] = None,
    port: Annotated[int | None, flag("net.port", "--port")] = None,
    bind_ip: Annotated[str | None, flag("net.bindIp", "--bind_ip", "--bind-ip")] = None,
    bind_ip_all: Annotated[
        bool | None, flag("net.bindIpAll", "--bind_ip_all", "--bind-ip-all")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-f", help="A YAML file; names are mongos's.")
    ] = None,
    upstream: Annotated[str | None, flag("upstream", "--upstream")] = None,
    feed_port: Annotated[int | None, flag("feed.port", "--feed-port")] = None,
    admin_port: Annotated[int | None, flag("net.admin.port", "--admin-port")] = None,
    workers: Annotated[int | None, flag("workers", "--workers")] = None,
    set_parameter: Annotated[
        list[str] | None, typer.Option("--setParameter", help="name=value; may be repeated.")
    ] = None,
    max_conns: Annotated[int | None, flag("net.maxIncomingConnections", "--maxConns")] = None,
    key_file: Annotated[str | None, flag("security.keyFile", "--keyFile")] = None,
    cluster_auth_mode: Annotated[
        str | None, flag("security.clusterAuthMode", "--clusterAuthMode")
    ] = None,
    tls_mode: Annotated[str | None, flag("net.tls.mode", "--tlsMode")] = None,
    tls_certificate_key_file: Annotated[
        Path | None, flag("net.tls.certificateKeyFile", "--tlsCertificateKeyFile")
    ] = None,
    tls_cluster_file: Annotated[
        Path | None, flag("net.tls.clusterFile", "--tlsClusterFile")
    ] = None,
    tls_ca_file: Annotated[Path | None, flag("net.tls.CAFile", "--tlsCAFile")] = None,
    tls_cluster_ca_file: Annotated[
        Path | None, flag("net.tls.clusterCAFile", "--tlsClusterCAFile")
    ] = None,
    tls_crl_file: Annotated[Path | None, flag("net.tls.CRLFile", "--tlsCRLFile")] = None,
    tls_allow_connections_without_certificates: Annotated[
        bool | None,
        flag(
            "net.tls.allowConnectionsWithoutCertificates",
            "--tlsAllowConnectionsWithoutCertificates",
        ),
    ] = None,
    tls_allow_invalid_hostnames: Annotated[
        bool | None, flag("net.tls.allowInvalidHostnames", "--tlsAllowInvalidHostnames")
    ] = None,
    tls_allow_invalid_certificates: Annotated[
        bool | None, flag("net.tls.allowInvalidCertificates", "--tlsAllowInvalidCertificates")
    ] = None,
    tls_disabled_protocols: Annotated[
        str | None, flag("net.tls.disabledProtocols", "--tlsDisabledProtocols")
    ] = None,
    local_threshold: Annotated[
        int | None, flag("replication.localPingThresholdMs", "--localThreshold")
    ] = None,
    network_message_compressors: Annotated[
        str | None, flag("net.compression.compressors", "--networkMessageCompressors")
    ] = None,
    verbose: Annotated[int, flag("systemLog.verbosity", "--verbose", "-v", count=True)] = 0,
    quiet: Annotated[bool | None, flag("systemLog.quiet", "--quiet")] = None,
) -> None:
    """Run the router: answer drivers as mongos does, change streams merged."""
    flags = {
        "sharding": {"configDB": configdb},
        "net": {
            "port": port,
            "bindIp": bind_ip,
            "bindIpAll": bind_ip_all,
            "maxIncomingConnections": max_conns,
            "compression": {"compressors": network_message_compressors},
            "admin": {"port": admin_port},
            "tls": {
                "mode": tls_mode,
                "certificateKeyFile": tls_certificate_key_file,
                "clusterFile": tls_cluster_file,
                "CAFile": tls_ca_file,
                "clusterCAFile": tls_cluster_ca_file,
                "CRLFile": tls_crl_file,
                "allowConnectionsWithoutCertificates": tls_allow_connections_without_certificates,
                "allowInvalidHostnames": tls_allow_invalid_hostnames,
                "allowInvalidCertificates": tls_allow_invalid_certificates,
                "disabledProtocols": tls_disabled_protocols,
            },
        },
        "replication": {"localPingThresholdMs": local_threshold},
        "security": {"keyFile": key_file, "clusterAuthMode": cluster_auth_mode},
        "systemLog": {"verbosity": verbose or None, "quiet": quiet},
        "setParameter": parse_assignments(set_parameter or []),
        "upstream": upstream,
        "workers": workers,
        "feed": {"port": feed_port},
    }
    settings = read_settings(flags, config)
    if settings.sharding.config_db is None:
        raise typer.BadParameter(_NO_CONFIG_SERVER, param_hint="--configdb")
    configure_logging(settings.system_log.verbosity, quiet=settings.system_log.quiet)
    try:
        raise_descriptor_limit()
        keep_freed_memory()
        collect_less_often()
        uvloop.run(run_until_signalled(settings))
    except OSError as error:
        log.error("Failed to set up the listener", component="NETWORK", error=str(error))
        raise typer.Exit(_NETWORK_FAILURE) from error
    except WorkerFailedError as error:
        log.critical("A worker cannot be started", component="CONTROL", error=str(error))
        raise typer.Exit(error.status if error.status > 0 else 1) from error


if __name__ == "__main__":
    main()
