"""The router's settings, from flags, environment and a YAML file, with mongos's names."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Self

import yaml
from pydantic import BeforeValidator, Field, create_model, field_validator, model_validator

from router.config.problems import Section, comma_separated, fields, nearest
from router.config.security import Security
from router.config.tls import Mode, Tls
from router.config.tracing import Tracing
from router.limits.client_limits import ClientLimits, Network, supported_connections
from router.parameter import fields_set_by, milliseconds, parameter, parameters_of
from router.peers.cursor_ids import MOST_WORKERS
from router.stream_settings import StreamSettings
from shard_client.replica_set.replica_set import parse_hosts
from shard_client.wire.compression import AVAILABLE
from shard_client.wire.connection import is_loopback

DEFAULT_PORT = 27020
_EXAMPLE = "net: {port: 27020}"


class Sharding(Section):
    """``sharding``: the cluster, identified by its config server."""

    config_db: str | None = Field(default=None, alias="configDB")
    """The config server: rsName/host:port[,host:port]. Required, unless replication.replicaSet is
    set."""

    @field_validator("config_db")
    @classmethod
    def _is_replica_set(cls, value: str | None) -> str | None:
        if value is not None:
            parse_hosts(value)
        return value


class Compression(Section):
    """``net.compression``: compression of client connections."""

    compressors: str = ",".join(AVAILABLE)
    """The compressors that clients may use, best first; disabled for none."""


class Admin(Section):
    """``net.admin``: the HTTP port for operators: metrics, health and status (docs/admin.md)."""

    port: int | None = Field(default=None, ge=0, le=65535)
    """The HTTP port for metrics, health and status; 0 picks a free one."""
    bind_ip: str = "127.0.0.1"
    """The addresses of the admin port, separated by commas."""
    token_file: Path | None = None
    """A file with one line: the token that clients of the admin port must send. Required where
    other machines reach the port."""
    tls_mode: Mode | None = None
    """Which connections to this port use TLS, if not those of net.tls.mode: none (disabled), those
    of clients that wish it (allowTLS, preferTLS), all (requireTLS). No client is asked for a
    certificate."""

    @property
    def hosts(self) -> list[str]:
        """The addresses to listen on."""
        return comma_separated(self.bind_ip)

    @model_validator(mode="after")
    def _is_protected(self) -> Self:
        open_to_others = [host for host in self.hosts if not _is_local(host)]
        if self.port is not None and open_to_others and self.token_file is None:
            raise ValueError(
                f"bindIp {open_to_others[0]} can be reached from other machines: set tokenFile to "
                "a file with the token that clients must send, or bind to 127.0.0.1"
            )
        return self

    def read_token(self) -> str | None:
        """Return the token in ``tokenFile``, None if no file is set.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is empty or holds more than one line.
        """
        if self.token_file is None:
            return None
        token = self.token_file.read_text().strip()
        if not token or "\n" in token:
            raise ValueError(f"{self.token_file} must hold one line: the token")
        return token


def _is_local(host: str) -> bool:
    return host == "localhost" or is_loopback((host,))


_Network = Annotated[Network, BeforeValidator(partial(ip_network, strict=False))]


class Net(Section):
    """``net``: the addresses and limits of client connections."""

    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    """The port for drivers; 0 picks a free one."""
    bind_ip: str = "127.0.0.1"
    """The addresses to listen on, separated by commas."""
    bind_ip_all: bool = False
    """Whether to listen on all addresses; then bindIp does not count."""
    max_incoming_connections: int = Field(default=65536, ge=1)
    """Client connections at a time; further ones are closed."""
    max_incoming_connections_override: list[_Network] = Field(default_factory=list)
    """Addresses and networks, such as 10.0.0.0/8, from which connections are not limited."""
    compression: Compression = Compression()
    admin: Admin = Admin()
    tls: Tls = Tls()

    @model_validator(mode="after")
    def _admin_has_certificates(self) -> Self:
        if self.admin_tls_mode != "disabled" and not self.tls.enabled:
            raise ValueError(
                f"admin.tlsMode {self.admin_tls_mode} requires the certificate in net.tls: set "
                "tls.mode to allowTLS at least, and tls.certificateKeyFile"
            )
        return self

    @property
    def admin_tls_mode(self) -> Mode:
        """Which connections to the admin port use TLS."""
        return self.admin.tls_mode or self.tls.mode

    @property
    def hosts(self) -> list[str]:
        """The addresses to listen on."""
        if self.bind_ip_all:
            return ["0.0.0.0"]  # noqa: S104
        return comma_separated(self.bind_ip)

    @property
    def compressors(self) -> tuple[str, ...]:
        """The compressors that clients may use, best first."""
        return tuple(
            name for name in comma_separated(self.compression.compressors) if name in AVAILABLE
        )


class Replication(Section):
    """``replication``: the replica set behind the router, and the members that are read from."""

    replica_set: str | None = None
    """A replica set instead of a sharded cluster: rsName/host:port[,host:port]."""
    local_ping_threshold_ms: int = Field(default=15, ge=0)
    """Milliseconds by which a member's round trip may exceed the nearest member's."""

    @field_validator("replica_set")
    @classmethod
    def _is_replica_set(cls, value: str | None) -> str | None:
        if value is not None and parse_hosts(value)[0] == "config":
            raise ValueError("a set of the name config is a config server: see configDB")
        return value


class SystemLog(Section):
    """``systemLog``: the amount of logging on stdout."""

    verbosity: int = Field(default=0, ge=0, le=5)
    """0 logs information, 1 or more also debug lines."""
    quiet: bool = False
    """Whether to log warnings and errors only."""


class Feed(Section):
    """``feed``: the output socket, which mongos does not have."""

    port: int | None = Field(default=None, ge=0, le=65535)
    """The port of the feed, which sends events as JSON lines; 0 picks a free one."""
    bind_ip: str = "127.0.0.1"
    """The address of the feed's port."""
    request_wait_ms: float = Field(default=200.0, ge=0, le=60_000)
    """How long the feed waits for a client's request before it sends the default stream."""
    watch: dict[str, Any] = Field(default_factory=dict)
    """The default stream: what clients receive that send no request."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of a process that concern neither its clients nor its streams; times in seconds."""

    test_commands: bool = parameter(
        "enableTestCommands",
        False,
        "Allows commands that only tests may use, such as configureFailPoint.",
    )
    refresh_users: int = parameter(
        "userCacheInvalidationIntervalSecs",
        30,
        "Time between two readings of the users' privileges, if the router may not ask the config "
        "server whether they have changed; it asks every two seconds, or more often.",
        least=1,
        most=86_400,
    )
    drain_time: float = milliseconds(
        "mongosShutdownTimeoutMillisForSignaledShutdown",
        3.0,
        "Time after SIGTERM in which commands in flight may end.",
        kind=int,
        most=600_000,
    )


_FIELDS: Final[dict[str, Any]] = {
    parameter.name: (parameter.kind, parameter.field)
    for settings in (ProcessSettings, ClientLimits, StreamSettings)
    for parameter in parameters_of(settings).values()
}
_Fields: Any = create_model("_Fields", __base__=Section, __module__=__name__, **_FIELDS)


class Parameters(_Fields):  # type: ignore[misc]
    """``setParameter``: every start parameter by name, which is mongos's where it has one."""


class Settings(Section):
    """All settings of the operator (docs/settings.md).

    Flags override environment variables (``MERGEROUTER_NET__PORT``), which override the file.
    """

    sharding: Sharding = Sharding()
    net: Net = Net()
    replication: Replication = Replication()
    system_log: SystemLog = SystemLog()
    set_parameter: Parameters = Parameters()
    upstream: str | None = None
    """The mongos for everything but change streams: mongodb://host:port[,host:port]. A replica set
    is its own upstream."""
    workers: int = Field(default=1, ge=1, le=MOST_WORKERS)
    """Processes that share the port."""
    feed: Feed = Feed()
    security: Security = Security()
    tracing: Tracing = Tracing()

    @field_validator("upstream")
    @classmethod
    def _is_uri(cls, value: str | None) -> str | None:
        if value is not None:
            # Imported here: it brings the logs with it, and the help of a command needs none.
            from router.upstream.upstream_mongos import parse_upstream

            parse_upstream(value)
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name, value in (
            ("sharding.configDB", self.sharding.config_db),
            ("upstream", self.upstream),
        ):
            if value is not None and not self.sharded:
                raise ValueError(
                    f"replication.replicaSet excludes {name}: a replica set has no config server, "
                    "and gets the other commands itself"
                )
        if self.workers > 1 and self.process.test_commands:
            raise ValueError(
                "setParameter.enableTestCommands requires workers: 1, since a fail point acts in "
                "one process"
            )
        if self.security.by_certificate and not self.net.tls.towards_cluster:
            raise ValueError(
                f"security.clusterAuthMode {self.security.cluster_auth_mode} requires TLS towards "
                "the cluster: set net.tls.mode to requireTLS or preferTLS"
            )
        return self

    @property
    def seeds(self) -> str | None:
        """The config server, or the replica set; None if neither is set."""
        return self.sharding.config_db or self.replication.replica_set

    @property
    def sharded(self) -> bool:
        """Whether a sharded cluster is behind the router, not a replica set."""
        return self.replication.replica_set is None

    @property
    def parameters(self) -> dict[str, Any]:
        """All start parameters by name."""
        values: dict[str, Any] = self.set_parameter.model_dump()
        return values

    @property
    def process(self) -> ProcessSettings:
        """The settings of each process."""
        return ProcessSettings(**fields_set_by(self.parameters, ProcessSettings))

    @property
    def client_limits(self) -> ClientLimits:
        """The limits of clients, as far as the process's limit of open files allows them."""
        each = 1 if self.sharded and self.upstream is None else 2
        return ClientLimits(
            **fields_set_by(self.parameters, ClientLimits),
            connections=supported_connections(self.net.max_incoming_connections, each),
            exempt=tuple(self.net.max_incoming_connections_override),
        )

    def given(self) -> dict[str, Any]:
        """Return the explicit settings, nested and named as in the file, for getCmdLineOpts.

        Passwords are hidden.
        """
        # Paths become strings: BSON has none.
        dumped = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        shown: dict[str, Any] = json.loads(json.dumps(dumped, sort_keys=True))
        return shown


def settings_of_streams(values: Mapping[str, Any]) -> StreamSettings:
    """Return the stream settings that the parsed parameters set."""
    return StreamSettings(**fields_set_by(values, StreamSettings))


def load_settings(flags: Mapping[str, Any], file: Path | None = None) -> Settings:
    """Read the settings from all their sources.

    Args:
        flags: named as in the file, nested or dotted; None counts as not given.
        file: the YAML file.

    Raises:
        ValueError: if a setting is unknown or invalid; the message names it.
        OSError: if the file cannot be read.
    """
    from_flags = {path: value for path, value in _flat(flags).items() if value not in (None, {})}
    from_file = {} if file is None else _flat(_read_file(file))
    settings: dict[str, Any] = {}
    for (*outer, last), value in {**from_file, **_read_environment(), **from_flags}.items():
        section = settings
        for name in outer:
            section[name] = {} if section.get(name) is None else section[name]
            section = section[name]
            if not isinstance(section, dict):
                raise ValueError(f"{name} is a section: its settings stand below it")
        if value != {} or last not in section:
            section[last] = value
    return Settings(**settings)


_Path = tuple[str, ...]
"""The names of the sections around a setting, and its own."""


def _flat(content: Mapping[str, Any], outer: _Path = ()) -> dict[_Path, Any]:
    """Return the values of nested sections, whose names may be dotted, by their paths.

    A mongos configuration file may also contain dotted names, such as ``net.port: 27020``.
    """
    values: dict[_Path, Any] = {}
    for key, value in content.items():
        path = (*outer, *str(key).split("."))
        values |= _flat(value, path) if isinstance(value, Mapping) and value else {path: value}
    return values


def _read_file(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{file}{place} is not YAML: {problem or error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold settings, such as {_EXAMPLE!r}")
    return content


PREFIX = "MERGEROUTER_"
"""The beginning of every variable that is a setting."""

_DOT = "__"


def variable(setting: str) -> str:
    """Return the name of the variable that sets ``setting``, a dotted name as in the file."""
    return PREFIX + setting.replace(".", _DOT).upper()


_MAPS: Final = ("setParameter", "feed.watch")
"""The settings that are maps: YAML or JSON in a variable."""


def _read_environment() -> dict[_Path, Any]:
    """Return the settings in the environment by path.

    A variable that is no setting is ignored if its name has no two underscores in a row and
    resembles no setting: Kubernetes sets MERGEROUTER_PORT in every pod if there is a service of
    that name. Raises ValueError: a variable names no setting, or a map is not valid; the message
    names it.
    """
    settings = dict(fields(Settings))
    by_variable = {variable(name): name for name in (*settings, *_MAPS)}
    values: dict[_Path, Any] = {}
    for written, value in os.environ.items():
        name = written.upper()
        if not name.startswith(PREFIX):
            continue
        setting = by_variable.get(name)
        if setting is not None:
            values |= _flat({setting: _map(written, value) if setting in _MAPS else value})
            continue
        alike = [path for path in by_variable if (_DOT in path) == (_DOT in name)]
        near = nearest(name, alike, required=len(PREFIX))
        if near or _DOT in name:
            raise ValueError(f"the environment variable {written} is not a setting.{near}")
    return values


def _map(name: str, text: str) -> dict[str, Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"the environment variable {name} must be a map, as in {{name: value}}")
    return value
