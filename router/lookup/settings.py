"""What lookups may take."""

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """Bounds of the lookups of a process. Times in seconds, sizes in bytes."""

    connections: int = 8
    """Connections to the upstream, and so requests in flight, over all streams."""
    first_events: int = 100
    """Events whose documents a stream's first request asks for; adapted to their sizes."""
    most_events: int = 1000
    """Bound of that."""
    target_bytes: int = 4 * _MIB
    """Size that the documents of one request should have together."""
    timeout: float = 30.0
    """How long a request may take, attempts after network errors included."""
    backoff_first: float = 0.01
    """Longest first pause before another attempt; doubles with each."""
    backoff_max: float = 2.0
    """Bound of that doubling."""
