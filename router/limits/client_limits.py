"""The limits of client connections: their number, their times, and the size of messages."""

import resource
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from router.parameter import milliseconds, parameter
from shard_client.wire.frames import MAX_MESSAGE_SIZE

Network = IPv4Network | IPv6Network

FOR_DRIVERS: Final = 0.8
FOR_FEEDS: Final = 0.05
"""Parts of the process's descriptors; the rest is for servers, the admin port and files."""

_SHARE_OF_ONE: Final = 0.8
_PREFIX: Final = 64
_LOG_INTERVAL: Final = 1.0


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


@dataclass(slots=True)
class ConnectionCounts:
    """Counts connections, in all and by client, and refuses those beyond the limits.

    A client is an address or, with IPv6, a network of 64 bits, since a host can take any address of
    its network. None stands for a client without an address.

    Args:
        most: maximum number of connections.
        most_per_client: the same for one client; 0 for four fifths of all.
        exempt: the networks that the limits do not apply to.
    """

    most: int
    most_per_client: int = 0
    exempt: Sequence[Network] = ()
    open: int = 0
    refused: int = 0
    by_client: Counter[str] = field(default_factory=Counter)
    _logged: int = 0
    _logged_at: float = float("-inf")

    @property
    def limit_per_client(self) -> int:
        """The maximum number of connections of one client."""
        return self.most_per_client or max(1, int(self.most * _SHARE_OF_ONE))

    def admit(self, address: str | None, now: float) -> bool:
        """Count one more connection from ``address``, if it is within the limits.

        A refusal is logged, at most once a second; ``now`` is the event loop's time.
        """
        client = None if address is None else client_of(address)
        if address is None or not self._is_exempt(address):
            within = self.open < self.most
            if within and client is not None:
                within = self.by_client[client] < self.limit_per_client
            if not within:
                self.refused += 1
                self._log_refusal(address, now)
                return False
        self.open += 1
        if client is not None:
            self.by_client[client] += 1
        return True

    def _log_refusal(self, address: str | None, now: float) -> None:
        if now - self._logged_at < _LOG_INTERVAL:
            return
        import structlog  # the module of settings imports this one: its import must be quick

        structlog.get_logger().warning(
            "Connection refused because there are too many open connections",
            component="NETWORK",
            id=22942,
            remote=address,
            connectionCount=self.open,
            ofThisClient=0 if address is None else self.by_client[client_of(address)],
            refused=self.refused - self._logged,
        )
        self._logged, self._logged_at = self.refused, now

    def release(self, address: str | None) -> None:
        """Count a connection from ``address`` no longer."""
        self.open -= 1
        if address is not None:
            client = client_of(address)
            self.by_client[client] -= 1
            if self.by_client[client] <= 0:
                del self.by_client[client]

    def _is_exempt(self, address: str) -> bool:
        if not self.exempt:
            return False
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self.exempt)


def client_of(address: str) -> str:
    """Return the client that an address belongs to."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((int(parsed), _PREFIX), strict=False))
