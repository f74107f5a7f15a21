"""How this process connects to the servers of a cluster: with which login."""

from dataclasses import dataclass

from shard_client.wire.authentication import Credentials


@dataclass(frozen=True, slots=True)
class Access:
    """What a connection to a server of the cluster takes.

    ``credentials`` are None for a cluster without authentication.
    """

    credentials: Credentials | None = None


OPEN = Access()
"""Access to a cluster without authentication."""
