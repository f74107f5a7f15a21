"""How this process connects to the servers of a cluster: with which login, and by TLS."""

import ssl
from dataclasses import dataclass

from shard_client.wire.authentication import Credentials
from shard_client.wire.tls import TlsContexts


@dataclass(frozen=True, slots=True)
class Access:
    """The login and the TLS contexts of connections to servers of the cluster.

    ``credentials`` are None for a cluster without authentication. ``tls`` is None for connections
    without TLS.
    """

    credentials: Credentials | None = None
    tls: TlsContexts | None = None

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context of a new connection, None without TLS."""
        return None if self.tls is None else self.tls.outgoing


OPEN = Access()
"""Access to a cluster without authentication and TLS."""
