"""The cluster time of one process: a timestamp that only grows and spreads by gossip."""

from collections.abc import Callable, Mapping
from typing import Any

from bson.timestamp import Timestamp


class LogicalClock:
    """A source of MongoDB cluster times (docs/protocol.md#sharded-cluster).

    ``wall`` returns the wall clock in seconds since 1970. Timestamps follow its seconds and count
    up within one second. Several members may share a clock, or each have a clock and exchange
    cluster times through ``advance``.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._latest = (int(wall()) << 32) | 1

    @property
    def time(self) -> Timestamp:
        """The largest cluster time so far."""
        return as_timestamp(self._latest)

    def tick(self) -> Timestamp:
        """Return a new cluster time, greater than all cluster times so far."""
        self._latest = max(self._latest + 1, (int(self._wall()) << 32) | 1)
        return as_timestamp(self._latest)

    def advance(self, cluster_time: Timestamp) -> None:
        """Adopt another party's cluster time if it is greater."""
        self._latest = max(self._latest, as_ordinal(cluster_time))


def client_time(command: Mapping[str, Any]) -> Timestamp | None:
    """Return the cluster time in a client's command, or None if it has none."""
    gossiped = command.get("$clusterTime")
    time = gossiped.get("clusterTime") if isinstance(gossiped, Mapping) else None
    return time if isinstance(time, Timestamp) else None


def as_ordinal(timestamp: Timestamp) -> int:
    """Return ``timestamp`` as one comparable 64-bit integer."""
    return (timestamp.time << 32) | timestamp.inc


def as_timestamp(ordinal: int) -> Timestamp:
    """Return the timestamp whose ``as_ordinal`` is ``ordinal``."""
    return Timestamp(ordinal >> 32, ordinal & 0xFFFFFFFF)
