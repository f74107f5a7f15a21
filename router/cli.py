"""The command line: ``mergerouter serve``, and the sub-commands of other packages."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from typing import Annotated, Any

import typer

from router.config.command_line import (
    FLAGS,
    ConfigFile,
    Refusal,
    SubCommand,
    parse_assignments,
    read_settings,
    with_flags,
)
from router.config.problems import nearest
from router.config.settings import Settings

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
    "or set sharding.configDB in the file that --config names. For a replica set, pass "
    "--replicaSet."
)
_NETWORK_FAILURE = 48
"""The exit status of a mongos that cannot listen."""
_CONFIGURATION = 78
"""The exit status for a configuration error, as in sysexits."""
_CONTEXT = {"max_content_width": 100}
_ANY_ARGUMENTS = {**_CONTEXT, "ignore_unknown_options": True, "help_option_names": []}
"""The context of a command that explains what is missing, whatever its arguments are."""
_USAGE = 2
"""The exit status after a command line that cannot be understood."""


def main() -> None:
    """Run the sub-command that the command line names."""
    app = typer.Typer(
        name="mergerouter",
        help="Merges the change streams of a sharded MongoDB cluster; speaks mongos's protocol.",
        no_args_is_help=True,
        rich_markup_mode=None,  # which would cut the names of flags at 80 columns
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    points = {point.name: point for point in (*OWN_COMMANDS, *entry_points(group=_GROUP))}
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    if wanted is not None and wanted not in points and not wanted.startswith("-"):
        commands = ", ".join(sorted(points))
        hint = nearest(wanted, points)
        typer.echo(f"{wanted} is not a command.{hint} The commands are {commands}.", err=True)
        raise SystemExit(_USAGE)
    for point in points.values():
        if wanted not in (None, point.name, *_FOR_ALL):
            continue  # Import only the sub-command that runs.
        if missing := missing_packages(point):
            app.command(point.name, context_settings=_ANY_ARGUMENTS)(
                explanation(point.name, missing)
            )
            continue
        command = point.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=point.name)
        else:
            app.command(point.name, cls=SubCommand, context_settings=_CONTEXT)(command)
    app()


def missing_packages(point: EntryPoint) -> list[str]:
    """Return the requirements of a sub-command's extras that are not installed: "pyspark>=4.2"."""
    missing = []
    for requirement in requires("mergerouter") or ():
        package, _semicolon, marker = requirement.partition(";")
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if extra and extra[1] in point.extras:
            try:
                version(re.split(r"[^\w.-]", package, maxsplit=1)[0])
            except PackageNotFoundError:
                missing.append(package.strip())
    return missing


def explanation(command: str, missing: Sequence[str]) -> Callable[..., None]:
    """Return a sub-command that takes any arguments and prints how to install what is missing."""
    # The packages themselves: no index needs to have mergerouter with its extras.
    remedy = shlex.join([sys.executable, "-m", "pip", "install", *missing])

    def explain(
        _arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    ) -> None:
        typer.echo(
            f"mergerouter {command} needs packages that are not installed here. Install them:\n"
            f"  {remedy}\nOther ways: docs/install.md",
            err=True,
        )
        raise typer.Exit(1)

    explain.__doc__ = "Needs packages that are not installed."
    return explain


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


@with_flags(*FLAGS)
def serve(
    *,
    flags: dict[str, Any],
    config: ConfigFile = None,
    set_parameter: Annotated[
        list[str] | None, typer.Option("--setParameter", help="name=value; may be repeated.")
    ] = None,
) -> None:
    """Run the router.

    It answers drivers as mongos does, and merges the change streams of all shards.
    """
    flags["setParameter"] = parse_assignments(set_parameter or [])
    settings = read_settings(flags, config)
    if settings.seeds is None:
        raise Refusal(_NO_CONFIG_SERVER)
    _serve(settings)


def _serve(settings: Settings) -> None:
    """Run the router. What it imports takes longer than the help of all commands."""
    import structlog
    import uvloop

    from router.allocator import collect_less_often, keep_freed_memory
    from router.config.log_lines import configure_logging
    from router.limits.client_limits import raise_descriptor_limit
    from router.run import WrongServersError, run_until_signalled
    from router.workers.supervisor import WorkerFailedError
    from shard_client.errors import plain_text

    configure_logging(settings.system_log.verbosity, quiet=settings.system_log.quiet)
    log = structlog.get_logger()
    try:
        raise_descriptor_limit()
        keep_freed_memory()
        collect_less_often()
        uvloop.run(run_until_signalled(settings))
    except WrongServersError as error:
        log.critical(
            "The settings name the wrong servers; ending", component="SHARDING", error=str(error)
        )
        raise typer.Exit(_CONFIGURATION) from error
    except OSError as error:
        log.error(
            "Failed to set up the listener",
            component="NETWORK",
            error=plain_text(error),
            bindIp=settings.net.hosts,
            port=settings.net.port,
        )
        raise typer.Exit(_NETWORK_FAILURE) from error
    except WorkerFailedError as error:
        log.critical("A worker cannot be started", component="CONTROL", error=str(error))
        raise typer.Exit(error.status if error.status > 0 else 1) from error


if __name__ == "__main__":
    main()
