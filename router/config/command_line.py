"""Settings of a command line, with errors as the command line reports them."""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import pydantic
import typer
from typer.core import TyperCommand

from router.config.problems import describe_problems, fields, nearest
from router.config.settings import Settings, load_settings
from shard_client.wire.tls import TlsContexts

FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "sharding.configDB": ("--configdb",),
    "replication.replicaSet": ("--replicaSet",),
    "net.port": ("--port",),
    "net.bindIp": ("--bind_ip", "--bind-ip"),
    "net.bindIpAll": ("--bind_ip_all", "--bind-ip-all"),
    "upstream": ("--upstream",),
    "feed.port": ("--feed-port",),
    "net.admin.port": ("--admin-port",),
    "workers": ("--workers",),
    "net.maxIncomingConnections": ("--maxConns",),
    "security.keyFile": ("--keyFile",),
    "security.clusterAuthMode": ("--clusterAuthMode",),
    "net.tls.mode": ("--tlsMode",),
    "net.tls.certificateKeyFile": ("--tlsCertificateKeyFile",),
    "net.tls.clusterFile": ("--tlsClusterFile",),
    "net.tls.CAFile": ("--tlsCAFile",),
    "net.tls.clusterCAFile": ("--tlsClusterCAFile",),
    "net.tls.CRLFile": ("--tlsCRLFile",),
    "net.tls.allowConnectionsWithoutCertificates": ("--tlsAllowConnectionsWithoutCertificates",),
    "net.tls.allowInvalidHostnames": ("--tlsAllowInvalidHostnames",),
    "net.tls.allowInvalidCertificates": ("--tlsAllowInvalidCertificates",),
    "net.tls.disabledProtocols": ("--tlsDisabledProtocols",),
    "replication.localPingThresholdMs": ("--localThreshold",),
    "net.compression.compressors": ("--networkMessageCompressors",),
    "systemLog.verbosity": ("--verbose", "-v"),
    "systemLog.quiet": ("--quiet",),
}
"""The flag of a setting, with its other spellings, by the setting's dotted name."""

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-f", help="A YAML file; names are mongos's.")
]
"""The option of a command that reads the settings."""

_COUNTED: Final = "systemLog.verbosity"
"""The setting whose flag may be repeated, as in -vv."""

SETTINGS: Final = dict(fields(Settings))
"""The field of each setting, by its dotted name."""

_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all errors of a command line, which typer does not export."""


class Refusal(typer.BadParameter):
    """A setting or an argument that cannot be used: the cause and the remedy on one line."""

    def show(self, file: Any = None) -> None:
        """Print the message without the command's usage, which would come first."""
        hint = self.param_hint
        text = self.message if hint is None else f"{hint}: {self.message}"
        typer.echo(f"error: {text}", file=file, err=file is None)


def file_problem(error: OSError, name: str = "") -> str:
    """Return what is wrong with a file, with the setting or the flag that names it."""
    text = str(error)
    if error.filename is not None:
        text = f"cannot use {error.filename}: {error.strerror}"
    elif error.errno is not None:  # pymongo names an option of the URI instead of the path
        reason = os.strerror(error.errno)
        text = reason if error.strerror == reason else f"{error.strerror}: {reason}"
    return f"{name}: {text}" if name else text


class SubCommand(TyperCommand):
    """A sub-command whose errors are one line: the argument, the cause and the remedy."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raises typer.BadParameter for wrong ones."""
        try:
            return super().parse_args(ctx, args)
        except _USAGE_ERROR as error:
            raise Refusal(_wrong(error, ctx.command_path)) from error


def _wrong(error: Any, command: str) -> str:
    """Return what is wrong with a command's arguments, and the remedy."""
    options, param = getattr(error, "possibilities", None), getattr(error, "param", None)
    if options is not None:
        hint = nearest(error.option_name, options) or f" {command} --help lists the options."
        return f"{error.option_name} is not an option.{hint}"
    if param is None:
        return f"{error.message.removesuffix('.')}: {command} --help lists the arguments"
    message = error.message.replace("Input should", "must")
    return f"{param.opts[0]}: {message}. {getattr(param, 'help', None) or ''}".rstrip()


def with_flags(*settings: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give the sub-command below the flags of these settings, by their dotted names.

    Their help is the setting's description and default. The command is called with its own options
    and with ``flags``, the values by the settings' names; None counts as not given.
    """
    named = {setting.replace(".", "_"): setting for setting in settings}

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        others = [
            parameter for parameter in signature(command, eval_str=True).parameters.values()
            if parameter.name != "flags"
        ]  # fmt: skip

        @wraps(command)
        def run(**values: Any) -> None:
            flags = {setting: values.pop(name) for name, setting in named.items()}
            if _COUNTED in flags:
                flags[_COUNTED] = flags[_COUNTED] or None
            command(flags=flags, **values)

        options = [_option(name, setting) for name, setting in named.items()]
        run.__signature__ = Signature([*options, *others])  # type: ignore[attr-defined]
        run.__annotations__ = {
            parameter.name: parameter.annotation for parameter in (*options, *others)
        }
        return run

    return decorated


def _option(name: str, setting: str) -> Parameter:
    """Return the parameter of a command that is the flag of a setting."""
    field = SETTINGS[setting]
    text, default = str(field.description), field.get_default(call_default_factory=True)
    if default and not isinstance(default, bool | dict):
        text = f"{text} Default: {default}."
    kinds = {field.annotation, *get_args(field.annotation)} & {bool, int, Path}
    kind: Any = kinds.pop() if kinds else str
    count = setting == _COUNTED
    option = typer.Option(0 if count else None, *FLAGS[setting], help=text, count=count)
    annotation = kind if count else kind | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def parse_assignments(assignments: list[str]) -> dict[str, str]:
    """Return the values of ``name=value`` by name; raises typer.BadParameter."""
    values = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise Refusal(
                f"{assignment!r} has no value: write name=value", param_hint="--setParameter"
            )
        values[name] = value
    return values


def read_settings(flags: dict[str, Any], config: Path | None) -> Settings:
    """Read the settings from flags, environment and file, and the files that they name.

    Args:
        flags: by dotted names as in the file; None counts as not given.
        config: the YAML file.

    Raises:
        typer.BadParameter: a setting is unknown or invalid, or a file cannot be read.
    """
    name = "--config"
    try:
        settings = load_settings(flags, config)
        name = "net.admin.tokenFile"
        settings.net.admin.read_token()
        name = "security.keyFile" if settings.security.key_file else "security.passwordFile"
        settings.security.logins()
        name = "tracing.headersFile"
        settings.tracing.read_headers()
        name = "net.tls"
        if settings.net.tls.enabled:
            TlsContexts(settings.net.tls.files())
        return settings
    except pydantic.ValidationError as error:
        raise Refusal(describe_problems(error, Settings)) from error
    except OSError as error:
        raise Refusal(file_problem(error, name)) from error
    except ValueError as error:
        text = str(error)
        raise Refusal(text if name == "--config" else f"{name}: {text}") from error
