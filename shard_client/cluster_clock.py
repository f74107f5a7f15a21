"""The newest cluster time received from servers (docs/protocol.md#authentication)."""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

import bson
from bson.timestamp import Timestamp

from shard_client.errors import ProtocolError
from shard_client.wire.documents import decode

_ordinal = Struct("<Q")
_ELSEWHERE = 1 << 64
MOST_DRIFT = 365 * 24 * 60 * 60
"""Most seconds that a time can be ahead: the default of maxAcceptableLogicalClockDriftSecs."""


class ClusterClock:
    """The newest ``$clusterTime`` that a server has sent, kept unchanged with its signature.

    Only servers' replies advance the clock: a client's time is not trustworthy, and would reach
    every other client and every member. The clock does no I/O. If the wall clock ``wall`` (seconds
    since 1970) is given, a time more than a year ahead of it is ignored: servers refuse a command
    that carries such a time (MongoDB's maxAcceptableLogicalClockDriftSecs).
    """

    __slots__ = ("_wall", "newest_signed", "ordinal", "raw")

    def __init__(self, wall: Callable[[], float] | None = None) -> None:
        self._wall = wall
        self.raw: bytes | None = None
        """The newest ``$clusterTime`` document as raw BSON, or None before the first."""
        self.newest_signed: tuple[bytes, Timestamp] | tuple[None, None] = None, None
        """The newest document that a server has signed with a key, with its time.

        None for both if there is none: servers sign nothing without authentication, nor for a
        connection that may advance the clock.
        """
        self.ordinal = 0
        """The newest cluster time as seconds << 32 | increment, 0 before the first."""

    def advance(self, cluster_time: bytes | memoryview | Mapping[str, Any] | None) -> None:
        """Advance to a ``$clusterTime`` document, raw or decoded; an older one changes nothing.

        A damaged document, or one without a timestamp in ``clusterTime``, is ignored.
        """
        if cluster_time is None or cluster_time == self.raw:
            return
        if isinstance(cluster_time, Mapping):
            cluster_time = bson.encode(cluster_time)
        elif _seen_at_the_front(cluster_time) <= self.ordinal:
            return
        raw = bytes(cluster_time)
        ordinal, signed = _read(raw)
        if ordinal > self.ordinal and not self._absurd(ordinal):
            self.ordinal = ordinal
            self.raw = raw
            if signed:
                self.newest_signed = raw, _timestamp(ordinal)

    def _absurd(self, ordinal: int) -> bool:
        return self._wall is not None and (ordinal >> 32) > self._wall() + MOST_DRIFT

    @property
    def time(self) -> Timestamp | None:
        """The newest cluster time seen, or None before the first."""
        return None if self.raw is None else _timestamp(self.ordinal)

    @property
    def document(self) -> dict[str, Any] | None:
        """The newest ``$clusterTime`` document decoded, or None before the first."""
        return None if self.raw is None else dict(bson.decode(self.raw))


_FRONT = b"\x11clusterTime\x00"
_FRONT_SIZE = 4 + len(_FRONT) + _ordinal.size


def _seen_at_the_front(raw: bytes | memoryview) -> int:
    """Return the time at its usual offset; a larger value than any time if it is not there."""
    if len(raw) < _FRONT_SIZE or raw[4 : _FRONT_SIZE - _ordinal.size] != _FRONT:
        return _ELSEWHERE
    ordinal: int = _ordinal.unpack_from(raw, _FRONT_SIZE - _ordinal.size)[0]
    return ordinal


def _read(raw: bytes) -> tuple[int, bool]:
    """Return the document's time as seconds << 32 | increment (0: none), and if it is signed."""
    try:
        document = decode(raw)
    except ProtocolError:
        return 0, False
    time, signature = document.get("clusterTime"), document.get("signature")
    if not isinstance(time, Timestamp):
        return 0, False
    signed = isinstance(signature, Mapping) and bool(signature.get("keyId"))
    return time.time << 32 | time.inc, signed


def is_signed(raw: bytes) -> bool:
    """Return whether a raw ``$clusterTime`` has the signature of a key, not the dummy one."""
    return _read(raw)[1]


def _timestamp(ordinal: int) -> Timestamp:
    return Timestamp(ordinal >> 32, ordinal & 0xFFFFFFFF)
