"""The command line: ``mergerouter serve`` and what other parts add to it."""

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import pydantic
import structlog
import typer
import uvloop
import yaml

from router.config.log_lines import configure_logging
from router.config.settings import Settings, load_settings
from router.service import run_until_signalled
from router.workers.supervisor import WorkerFailedError
from shard_client.allocation import collect_less_often, keep_freed_memory

log = structlog.get_logger()

_GROUP = "mergerouter.commands"
_NETWORK_FAILURE = 48
"""The status with which mongos ends when it cannot listen."""


def main() -> None:
    """Run the sub-command that the command line names."""
    app = typer.Typer(
        name="mergerouter",
        help="Merges the change streams of a sharded MongoDB cluster; speaks mongos's protocol.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
    )
    app.callback()(_nothing)
    for point in entry_points(group=_GROUP):
        if len(sys.argv) > 1 and sys.argv[1] not in (point.name, "--help"):
            continue  # what is not asked for is not imported
        app.command(point.name)(point.load())
    app()


def _nothing() -> None:
    """Merges the change streams of a sharded MongoDB cluster; speaks mongos's protocol."""


def serve(
    configdb: Annotated[
        str | None,
        typer.Option("--configdb", help="the config server: rsName/host:port[,host:port]"),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="where drivers connect [27020]; 0 picks one")
    ] = None,
    bind_ip: Annotated[
        str | None,
        typer.Option("--bind_ip", "--bind-ip", help="addresses to listen on [127.0.0.1]"),
    ] = None,
    bind_ip_all: Annotated[
        bool | None, typer.Option("--bind_ip_all", "--bind-ip-all", help="listen on all addresses")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-f", help="YAML file, named as mongos's")
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option("--upstream", help="mongos for all that is no change stream: mongodb://h:p"),
    ] = None,
    feed_port: Annotated[
        int | None, typer.Option("--feed-port", help="where events come as lines of JSON")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="processes that share the port [1]")
    ] = None,
    set_parameter: Annotated[
        list[str] | None, typer.Option("--setParameter", help="name=value, may be repeated")
    ] = None,
    max_conns: Annotated[
        int | None, typer.Option("--maxConns", help="client connections at a time [65536]")
    ] = None,
    network_message_compressors: Annotated[
        str | None,
        typer.Option("--networkMessageCompressors", help="compressors that clients may use"),
    ] = None,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="say more")] = 0,
    quiet: Annotated[bool | None, typer.Option("--quiet", help="say only what is wrong")] = None,
) -> None:
    """Answer drivers as a mongos does, with all shards' change streams merged."""
    flags = {
        "sharding": {"configDB": configdb},
        "net": {
            "port": port,
            "bindIp": bind_ip,
            "bindIpAll": bind_ip_all,
            "maxIncomingConnections": max_conns,
            "compression": {"compressors": network_message_compressors},
        },
        "systemLog": {"verbosity": verbose or None, "quiet": quiet},
        "setParameter": _parameters(set_parameter or []),
        "upstream": upstream,
        "workers": workers,
        "feed": {"port": feed_port},
    }
    settings = _settings(flags, config)
    if settings.sharding.config_db is None:
        raise typer.BadParameter("error: no args for --configdb", param_hint="--configdb")
    configure_logging(settings.system_log.verbosity, quiet=settings.system_log.quiet)
    try:
        keep_freed_memory()
        collect_less_often()
        uvloop.run(run_until_signalled(settings))
    except OSError as error:
        log.error("Failed to set up the listener", component="NETWORK", error=str(error))
        raise typer.Exit(_NETWORK_FAILURE) from error
    except WorkerFailedError as error:
        log.critical("A worker cannot be started", component="CONTROL", error=str(error))
        raise typer.Exit(error.status if error.status > 0 else 1) from error


def _parameters(assignments: list[str]) -> dict[str, str]:
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise typer.BadParameter(
                f"Illegal option assignment: {assignment!r}", param_hint="--setParameter"
            )
        values[name] = value
    return values


def _settings(flags: dict[str, Any], config: Path | None) -> Settings:
    try:
        return load_settings(flags, config)
    except pydantic.ValidationError as error:
        lines = [
            ".".join(str(part) for part in each["loc"]) + ": " + each["msg"]
            for each in error.errors()
        ]
        raise typer.BadParameter("; ".join(lines)) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise typer.BadParameter(str(error)) from error


if __name__ == "__main__":
    main()
