"""The senders of commands to an embedded server."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shard_client.wire.tls import Certificate


class UserName(NamedTuple):
    """A user's name and the database that it belongs to."""

    user: str
    database: str

    def __str__(self) -> str:
        return f"{self.user}@{self.database}"


@dataclass(slots=True, eq=False)
class Login:
    """The state of a connection's login.

    ``user`` is None before the login; ``user_id`` tells a user from a later one of the same name.
    ``conversation`` is the SASL conversation in progress. ``certificate`` is the client's own,
    which the TLS handshake has verified.
    """

    user: UserName | None = None
    user_id: Any = None
    conversation: Any = None
    certificate: Certificate | None = None


@dataclass(slots=True, eq=False)
class Client:
    """One connection, or the embedded mongos inside the same process.

    ``in_process`` clients may use features that servers reserve for each other: a given collection
    UUID, a cursor's whole result in one batch, and shared documents that must not be changed. They
    have a member's rights. ``from_migrate`` marks the oplog entries of the client's writes as part
    of a chunk migration, so that change streams skip them (docs/protocol.md#events).
    """

    connection_id: int = 0
    peer: str = ""
    in_process: bool = False
    from_migrate: bool = False
    metadata: dict[str, Any] | None = None
    login: Login = field(default_factory=Login)
