"""The configuration of MongoDB's own servers for tests and benchmarks."""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

ROOT = "root"
"""The name and the password of the user with all rights, where a login is required."""

_EVERY_SERVER = {
    "enableTestCommands": "1",
    # Diagnostics of idle or short-lived servers only cost CPU time.
    "diagnosticDataCollectionEnabled": "false",
}
_EVERY_MONGOD = {
    # With the default of 15 minutes, a chunk that moves back waits for the range deleter.
    "orphanCleanupDelaySecs": "0",
    "shutdownTimeoutMillisForSignaledShutdown": "0",
}
_EVERY_MONGOS = {"mongosShutdownTimeoutMillisForSignaledShutdown": "0"}
# The default journal reserves 200 MB for each mongod, too much for a dozen of them in memory.
_JOURNAL = "log=(enabled=true,remove=true,path=journal,compressor=snappy,file_max=16MB)"


def write_key_file(folder: Path) -> Path:
    """Write a new key for the members of a cluster, readable for the owner alone."""
    return write_secret(folder / "key", base64.b64encode(secrets.token_bytes(96)).decode())


def write_secret(path: Path, text: str) -> Path:
    """Write a file that its owner alone may read; return its path."""
    path.touch(0o600)
    path.write_text(text)
    return path


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Certificates of MongoDB's servers.

    Attributes:
        certificate: the certificate and key of every server, which its peers accept.
        authority: the authority's certificate.
        cluster_auth: whether servers log in to each other with their certificates.
    """

    certificate: Path
    authority: Path
    cluster_auth: bool = False

    def flags(self) -> list[str]:
        """Return the arguments of every server."""
        mode = ["--clusterAuthMode", "x509"] if self.cluster_auth else []
        return [
            "--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(self.certificate),
            "--tlsCAFile", str(self.authority), "--tlsAllowConnectionsWithoutCertificates", *mode,
        ]  # fmt: skip

    @property
    def options(self) -> list[str]:
        """The options of a connection string."""
        return [
            "tls=true", f"tlsCAFile={quote_plus(str(self.authority))}",
            f"tlsCertificateKeyFile={quote_plus(str(self.certificate))}",
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Options of mongod and mongos.

    Attributes:
        noop_interval: seconds between the no-ops of an idle primary, at least 1; None keeps the
        server's default of 10.
        cache_gb: WiredTiger's cache, in GB; at least 0.25.
        oplog_mb: the oplog's size, in MB. A mongod deletes nothing that its last checkpoint needs.
        checkpoint_seconds: the time between two checkpoints.
        parameters: further ``--setParameter`` values of every mongod; they take precedence.
        key_file: the cluster's key file; with one, all servers require a login.
        tls: the servers' certificates; with them, all connections use TLS.
    """

    noop_interval: float | None = None
    cache_gb: float = 0.25
    oplog_mb: int = 512
    checkpoint_seconds: int = 60
    parameters: Mapping[str, object] = field(default_factory=dict)
    key_file: Path | None = None
    tls: ServerTls | None = None

    def mongod(self) -> list[str]:
        """Return the arguments of every mongod, apart from its role, address and data."""
        parameters: dict[str, object] = {**_EVERY_SERVER, **_EVERY_MONGOD}
        if self.noop_interval is not None:
            parameters["periodicNoopIntervalSecs"] = max(1, round(self.noop_interval))
        return [
            "--wiredTigerCacheSizeGB", str(self.cache_gb),
            "--wiredTigerEngineConfigString", _JOURNAL,
            "--oplogSize", str(self.oplog_mb),
            "--syncdelay", str(self.checkpoint_seconds),
            "--nounixsocket",
            *self._security(),
            *_set_parameters({**parameters, **self.parameters}),
        ]  # fmt: skip

    def mongos(self) -> list[str]:
        """Return the arguments of every mongos, apart from its address and config server."""
        parameters = _set_parameters({**_EVERY_SERVER, **_EVERY_MONGOS})
        return ["--nounixsocket", *self._security(), *parameters]

    def uri(self, address: str, *options: str) -> str:
        """Return a connection string for one server, logged in as the servers themselves are."""
        login = ""
        if self.tls is not None:
            options = (*options, *self.tls.options)
        if self.tls is not None and self.tls.cluster_auth:
            options = (*options, "authSource=$external", "authMechanism=MONGODB-X509")
        elif self.key_file is not None:
            key = quote_plus("".join(self.key_file.read_text().split()))
            login = f"__system:{key}@"
            options = (*options, "authSource=local", "authMechanism=SCRAM-SHA-256")
        return f"mongodb://{login}{address}/" + ("?" + "&".join(options) if options else "")

    @property
    def login(self) -> bool:
        """Whether the servers require a login."""
        return self.key_file is not None or (self.tls is not None and self.tls.cluster_auth)

    def client_uri(self, address: str, login: str = "") -> str:
        """Return a connection string without the servers' own login.

        Args:
            address: ``host:port``.
            login: a user and a password, ``user:password``.
        """
        options = "" if self.tls is None else "?" + "&".join(self.tls.options)
        return f"mongodb://{login}{'@' if login else ''}{address}/{options}"

    def root_uri(self, address: str) -> str:
        """Return the connection string of ROOT, or one without a login where none is required."""
        return self.client_uri(address, f"{ROOT}:{ROOT}" if self.login else "")

    def embedded(self) -> list[str]:
        """Return the arguments of ``mergerouter embedded``."""
        interval = self.noop_interval
        return [
            *([] if interval is None else [f"--noop-interval={interval}"]), *self._security()
        ]  # fmt: skip

    def replica_set(self) -> dict[str, Any]:
        """Return the ``settings`` of every replica set: elections take about two seconds."""
        return {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500}

    def _security(self) -> list[str]:
        flags = [] if self.key_file is None else ["--keyFile", str(self.key_file)]
        return flags if self.tls is None else [*flags, *self.tls.flags()]


def _set_parameters(parameters: Mapping[str, object]) -> list[str]:
    return [
        word for name, value in parameters.items() for word in ("--setParameter", f"{name}={value}")
    ]
