"""Settings of lookups: their bounds."""

from dataclasses import dataclass

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """Bounds of a process's lookups. Times in seconds, sizes in bytes."""

    connections: int = 8
    """Maximum of requests to the upstream in their first second, and of idle connections, over all
    streams."""
    first_events: int = 100
    """Events looked up by a stream's first request; later adapted to the documents' sizes."""
    most_events: int = 1000
    """Upper bound of the adapted number of events."""
    target_bytes: int = 4 * _MIB
    """Target for the total size of the documents of one request."""
    timeout: float = 30.0
    """Time limit of a batch's lookups and of a request, with attempts after network errors. Half of
    it is for requests for several documents."""
    backoff_first: float = 0.01
    """Longest first pause before another attempt; doubles with each attempt."""
    backoff_max: float = 2.0
    """Upper bound of the doubled pause."""
