"""The configuration of MongoDB's own servers for tests and benchmarks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

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


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Options of mongod and mongos.

    Attributes:
        noop_interval: seconds between the no-ops of an idle primary, at least 1; None keeps the
        server's default of 10.
        cache_gb: WiredTiger's cache, in GB; at least 0.25.
        oplog_mb: the oplog's size, in MB.
        parameters: further ``--setParameter`` values of every mongod; they take precedence.
        key_file: the cluster's key file; with one, all servers require a login.
    """

    noop_interval: float | None = None
    cache_gb: float = 0.25
    oplog_mb: int = 512
    parameters: Mapping[str, object] = field(default_factory=dict)
    key_file: Path | None = None

    def mongod(self) -> list[str]:
        """Return the arguments of every mongod, apart from its role, address and data."""
        parameters: dict[str, object] = {**_EVERY_SERVER, **_EVERY_MONGOD}
        if self.noop_interval is not None:
            parameters["periodicNoopIntervalSecs"] = max(1, round(self.noop_interval))
        return [
            "--wiredTigerCacheSizeGB", str(self.cache_gb),
            "--wiredTigerEngineConfigString", _JOURNAL,
            "--oplogSize", str(self.oplog_mb),
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
        if self.key_file is not None:
            key = quote_plus("".join(self.key_file.read_text().split()))
            login = f"__system:{key}@"
            options = (*options, "authSource=local", "authMechanism=SCRAM-SHA-256")
        return f"mongodb://{login}{address}/" + ("?" + "&".join(options) if options else "")

    def replica_set(self) -> dict[str, Any]:
        """Return the ``settings`` of every replica set: elections take about two seconds."""
        return {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500}

    def _security(self) -> list[str]:
        return [] if self.key_file is None else ["--keyFile", str(self.key_file)]


def _set_parameters(parameters: Mapping[str, object]) -> list[str]:
    return [
        word for name, value in parameters.items() for word in ("--setParameter", f"{name}={value}")
    ]
