"""What all streams of a process hold in memory together."""

from typing import Final

LEAST_BATCH: Final = 64 * 1024
"""Bytes below which batches are not cut further."""

NEEDS: Final = 4
"""Batches for which a remote may need memory in any case: one that is merged, one on its way, and
twice as much for the buffer through which they come and for what Python's objects take."""


class Memory:
    """Counts the bytes of events that streams hold, and the remotes that hold them.

    ``limit`` is what they should keep to. A remote that has nothing may always fetch one batch,
    without which the merge could stand still: so batches get smaller the more remotes there are,
    down to a size below which no further stream is admitted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.remotes = 0

    @property
    def short(self) -> bool:
        """Whether streams should take in no more than they need to go on."""
        return self.held > self.limit

    @property
    def batch_bytes(self) -> int:
        """Size that the batches of each remote may have, so that what all need is there."""
        return max(LEAST_BATCH, self.limit // (NEEDS * max(1, self.remotes)))
