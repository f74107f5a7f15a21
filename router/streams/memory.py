"""The memory that all streams of a process use together."""

from typing import Final

LEAST_BATCH: Final = 64 * 1024
"""Smallest target size of a batch, in bytes."""

NEEDS: Final = 4
"""Number of batches for which a remote may need memory: one being merged and one in flight, doubled
for the receive buffer and the overhead of Python objects."""


class Memory:
    """Counts the bytes of events that streams hold, and the remotes of all streams.

    ``limit`` is the number of bytes that streams should not exceed. A remote with an empty buffer
    may always fetch one batch, since the merge could stop otherwise. Batches therefore shrink as
    the number of remotes grows, down to a size below which no further stream is admitted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.remotes = 0

    @property
    def short(self) -> bool:
        """Whether streams hold more than ``limit``, so that only empty buffers should be filled."""
        return self.held > self.limit

    @property
    def batch_bytes(self) -> int:
        """Size of each remote's batches at which ``limit`` suffices for all remotes."""
        return max(LEAST_BATCH, self.limit // (NEEDS * max(1, self.remotes)))
