"""The limit on open client connections, in all and by client."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

import structlog

from router.limits.client_limits import Network

log = structlog.get_logger(component="NETWORK")

_SHARE_OF_ONE: Final = 0.8
_PREFIX: Final = 64
_LOG_INTERVAL: Final = 1.0


@dataclass(slots=True)
class ConnectionLimit:
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
        log.warning(
            "Connection refused because there are too many open connections",
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
