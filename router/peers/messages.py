"""The messages between the parent and its workers, a class for each kind (docs/workers.md).

They are below ``workers``, whose channel carries them, because a worker's commands send some too.
"""

from dataclasses import dataclass
from typing import Literal

from router.catalog.version import ServerIdentity

Port = Literal["driver", "feed"]
"""The port that has accepted a connection."""


class WorkerMessage:
    """A message; only ``ServeClient`` has a connection with it."""


@dataclass(frozen=True)
class Ready(WorkerMessage):
    """From a worker: it can serve clients."""


@dataclass(frozen=True)
class ServeClient(WorkerMessage):
    """To a worker: serve this connection, whose number is unique in the whole router."""

    port: Port
    connection_id: int


@dataclass(frozen=True)
class ConnectionEnded(WorkerMessage):
    """From a worker: it serves this connection no longer."""

    connection_id: int


@dataclass(frozen=True)
class ReportLoad(WorkerMessage):
    """To a worker: answer with its ``Load``."""


@dataclass(frozen=True)
class Load(WorkerMessage):
    """From a worker: its load.

    ``cursors`` is the number of its open merged cursors, ``connections`` the number of driver
    connections, ``busy`` the share of a core used recently, 0 to 1.
    """

    cursors: int = 0
    connections: int = 0
    busy: float = 0.0


@dataclass(frozen=True)
class IdentityRead(WorkerMessage):
    """From a worker: it has read the cluster's version."""

    identity: ServerIdentity


@dataclass(frozen=True)
class ShowIdentity(WorkerMessage):
    """To a worker: show this version to clients, under this counter of the topology version."""

    identity: ServerIdentity
    counter: int


@dataclass(frozen=True)
class UseUpstream(WorkerMessage):
    """From a worker that could not connect, and to all: the mongos to use, by its index.

    The choice with the highest generation counts.
    """

    chosen: int
    generation: int


@dataclass(frozen=True)
class RotateCertificates(WorkerMessage):
    """To a worker, or from one that a client has asked for it: read the certificates again."""


@dataclass(frozen=True)
class SetVerbosity(WorkerMessage):
    """From a worker: a client has set the log level of all processes."""

    verbosity: int


@dataclass(frozen=True)
class Drain(WorkerMessage):
    """To a worker: refuse new commands, and let those in flight end within so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Drained(WorkerMessage):
    """From a worker: no command is in flight any more."""


@dataclass(frozen=True)
class End(WorkerMessage):
    """To a worker: end now."""
