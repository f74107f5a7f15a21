"""The messages between the parent and its workers (docs/workers.md).

They are below ``workers``, whose channel carries them, because a worker's commands send some too.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from router.catalog.reported_version import ServerIdentity

Port = Literal["driver", "feed"]
"""The port that has accepted a connection."""


class WorkerSignal(Enum):
    """A message without contents."""

    READY = "from a worker: it can serve clients"
    REPORT_LOAD = "to a worker: answer with its load"
    ROTATE_CERTIFICATES = "to or from a worker: read the certificates again"
    DRAINED = "from a worker: no command is in flight any more"
    END = "to a worker: end now"


@dataclass(frozen=True)
class ServeClient:
    """To a worker: serve this connection, whose number is unique in the whole router."""

    port: Port
    connection_id: int


@dataclass(frozen=True)
class ConnectionEnded:
    """From a worker: it serves this connection no longer."""

    connection_id: int


@dataclass(frozen=True)
class Load:
    """From a worker: its load.

    ``cursors`` is the number of its open merged cursors, ``connections`` the number of driver
    connections, ``busy`` the share of a core used recently, 0 to 1.
    """

    cursors: int = 0
    connections: int = 0
    busy: float = 0.0


@dataclass(frozen=True)
class IdentityRead:
    """From a worker: it has read the cluster's version."""

    identity: ServerIdentity


@dataclass(frozen=True)
class ShowIdentity:
    """To a worker: show this version to clients, under this counter of the topology version."""

    identity: ServerIdentity
    counter: int


@dataclass(frozen=True)
class UseUpstream:
    """From a worker that could not connect, and to all: the mongos to use, by its index.

    The choice with the highest generation counts.
    """

    chosen: int
    generation: int


@dataclass(frozen=True)
class SetVerbosity:
    """From a worker: a client has set the log level of all processes."""

    verbosity: int


@dataclass(frozen=True)
class Drain:
    """To a worker: refuse new commands, and let those in flight end within so many seconds."""

    seconds: float


WorkerMessage = (
    WorkerSignal
    | ServeClient
    | ConnectionEnded
    | Load
    | IdentityRead
    | ShowIdentity
    | UseUpstream
    | SetVerbosity
    | Drain
)
"""A message; only ``ServeClient`` has a connection with it."""
