"""The settings of a remote cursor."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteSettings:
    """Limits of one remote cursor; times in seconds, sizes in bytes
    (docs/design.md#a-remote-cursor)."""

    connect_timeout: float = 5.0
    """Time limit for one attempt to connect to a member, hello included."""
    reply_timeout: float = 5.0
    """How late a reply may be before the member is sent a hello over another connection."""
    failure_timeout: float = 30.0
    """How long a failed remote is retried before its failure is reported as a retriable error."""
    close_timeout: float = 2.0
    """Time limit for killing the cursors on shards when a stream is closed."""
    backoff_first: float = 0.01
    """Upper bound of the first pause before a failed remote is reopened; doubles with each
    failure."""
    backoff_max: float = 2.0
    """Upper bound of that doubling."""
    large_reply_bytes: int = 128 * 1024
    """Size from which a shard's reply is split only after the next getMore has been sent."""
    batch_target_bytes: int = 4 * 1024 * 1024
    """Target size of a batch while there is a backlog; batchSize is adapted to it. Fewer, larger
    batches wake the shards less often. Smaller if many shards share the stream's buffer."""
    await_unknown: float = 0.01
    """How long a getMore may wait if it is unknown whether the member waits or scans its oplog."""
