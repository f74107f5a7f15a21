"""The messages between the parent and its workers: each kind is a class.

A worker's commands and its peers also send some, so they are below ``workers``, whose channel
carries them. A message that goes both ways is first told to the parent, which tells the others.
"""

from dataclasses import dataclass
from typing import Final, Literal

from router.catalog.version import ServerIdentity

Port = Literal["driver", "feed"]
"""The port that has accepted a connection."""

DRIVER: Final = "driver"
FEED: Final = "feed"


@dataclass(frozen=True, slots=True)
class ServeClient:
    """To a worker, with a connection: serve it; its number is unique in the whole router."""

    port: Port
    connection_id: int


@dataclass(frozen=True, slots=True)
class ReportLoad:
    """To a worker: answer with its ``Load``."""


@dataclass(frozen=True, slots=True)
class ShowIdentity:
    """To a worker: show this version to clients, under this counter of the topology version."""

    identity: ServerIdentity
    counter: int


@dataclass(frozen=True, slots=True)
class Drain:
    """To a worker: refuse new commands, and report ``Drained`` after so many seconds at most."""

    seconds: float


@dataclass(frozen=True, slots=True)
class End:
    """To a worker: end at once."""


@dataclass(frozen=True, slots=True)
class UseUpstream:
    """Use the mongos of this index; the choice with the higher generation counts.

    From a worker when it could not connect to the mongos before, and to all others.
    """

    chosen: int
    generation: int


@dataclass(frozen=True, slots=True)
class RotateCertificates:
    """Read the certificates again: to a worker, or from one that a client has told to do so."""


@dataclass(frozen=True, slots=True)
class SetVerbosity:
    """From a worker: a client has set the log level of all processes."""

    verbosity: int


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: it can serve clients."""


@dataclass(frozen=True, slots=True)
class Load:
    """From a worker: its load.

    ``cursors`` is the number of its open merged cursors, ``connections`` the number of driver
    connections, ``busy`` the share of a core used recently, 0 to 1.
    """

    cursors: int = 0
    connections: int = 0
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """From a worker: a connection that it was handed has ended."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class IdentityRead:
    """From a worker: it has read another version of the cluster."""

    identity: ServerIdentity


@dataclass(frozen=True, slots=True)
class Drained:
    """From a worker: no command is in flight any more."""


ToWorker = ServeClient | ReportLoad | ShowIdentity | UseUpstream | RotateCertificates | Drain | End
ToParent = (
    Ready
    | Load
    | ConnectionEnded
    | IdentityRead
    | UseUpstream
    | RotateCertificates
    | SetVerbosity
    | Drained
)
