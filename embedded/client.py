"""The senders of commands to an embedded server."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Client:
    """One connection, or the embedded mongos inside the same process.

    ``in_process`` clients may use features that servers reserve for each other: a given collection
    UUID, a cursor's whole result in one batch, and shared documents that must not be changed. They
    have all rights. ``from_migrate`` marks the oplog entries of the client's writes as part of a
    chunk migration, so that change streams skip them (docs/protocol.md#events). ``account`` is the
    user that is logged in, ``login`` a login in progress (``embedded.access.logins``).
    """

    connection_id: int = 0
    peer: str = ""
    in_process: bool = False
    from_migrate: bool = False
    account: Any = None
    login: Any = None
