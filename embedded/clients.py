"""Who sends a command to an embedded server."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Client:
    """One connection, or the embedded mongos inside the same process.

    ``in_process`` clients may use what servers use among themselves (a given collection UUID, a
    cursor's whole result in one batch, documents that are shared and must not be changed);
    ``from_migrate`` marks the oplog entries of its writes as a chunk migration's, so that change
    streams leave them out (docs/protocol.md, section 5).
    """

    connection_id: int = 0
    peer: str = ""
    in_process: bool = False
    from_migrate: bool = False
    metadata: dict[str, Any] | None = None
