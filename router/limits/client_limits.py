"""The settings that limit client connections: their number, their times, their messages."""

import resource
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from router.parameter import milliseconds, parameter
from shard_client.wire.frames import MAX_MESSAGE_SIZE

Network = IPv4Network | IPv6Network

FOR_DRIVERS: Final = 0.8
FOR_FEEDS: Final = 0.05
"""Parts of the process's descriptors; the rest is for servers, the admin port and files."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of client connections. Times in seconds, sizes in bytes (docs/security.md#limits)."""

    connections: int = 65536
    """Maximum number of connections (net.maxIncomingConnections)."""
    connections_per_client: int = parameter(
        "maxConnectionsPerClient", 0, "Connections of one client's address; 0: four fifths of all."
    )
    exempt: tuple[Network, ...] = ()
    """Addresses that neither of the two applies to (net.maxIncomingConnectionsOverride)."""
    message_time: float = milliseconds(
        "messageTimeoutMs",
        30.0,
        "Time for a message that has begun; time in which a client must read some of a reply.",
        least=100,
    )
    messages_bytes: int = parameter(
        "messagesBytes",
        256 * 1024 * 1024,
        "Messages above 64 KiB of all clients until they are answered; further ones wait.",
        least=2 * MAX_MESSAGE_SIZE,
    )
    login_time: float = milliseconds(
        "loginTimeoutMs",
        10.0,
        "Time for a client's first message, and for a login that has begun.",
        least=100,
    )
    idle_before_login: float = milliseconds(
        "preAuthIdleTimeoutMs",
        600.0,
        "Time between two messages of a client that has not logged in.",
        least=100,
    )
    message_size_before_login: int = parameter(
        "preAuthMaximumMessageSizeBytes",
        16 * 1024,
        "Size of a message before the login.",
        least=1024,
    )
    logins_in_progress: int = parameter("maxLoginsInProgress", 100, "Logins in progress.", least=1)
    failed_login_delay: float = milliseconds(
        "authFailedDelayMs", 0.5, "Wait before a refused login is answered.", most=5000
    )

    @property
    def shortest_time(self) -> float:
        """The shortest of the times within which a client must do something."""
        return min(self.message_time, self.login_time, self.idle_before_login)


def supported_connections(wanted: int, descriptors_each: int = 1, part: float = FOR_DRIVERS) -> int:
    """Return how many client connections the limit of open files allows, at most ``wanted``.

    As in mongos, a fifth of the descriptors is left for other purposes than drivers.

    Args:
        wanted: the configured limit.
        descriptors_each: the number of descriptors that one client takes.
        part: the part of all descriptors that these clients may take together.
    """
    limit, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, int(limit * part) // descriptors_each))


def raise_descriptor_limit() -> None:
    """Raise the process's limit of open files to the one that it may set itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
