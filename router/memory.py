"""The memory that all streams of a process use together."""

from typing import Final

LEAST_BATCH: Final = 64 * 1024
"""Smallest target size of a batch, in bytes."""

NEEDS: Final = 4
"""Number of batches for which a remote may need memory: one being merged and one in flight, doubled
for the receive buffer and the overhead of Python objects. A cursor with document lookups needs as
much: events with their documents, and the reply that carries the next documents."""


class Memory:
    """Counts the bytes of events that a process holds, and what may hold them.

    ``limit`` is the number of bytes that should not be exceeded. A remote with an empty buffer may
    always fetch one batch, since the merge could stop otherwise, and a cursor with document lookups
    may always complete one event. Batches therefore shrink as the number of remotes and of such
    cursors grows, down to a size below which no more are admitted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.remotes = 0
        """Number of open remotes of all streams."""
        self.lookups = 0
        """Number of open cursors with document lookups."""

    @property
    def short(self) -> bool:
        """Whether more than ``limit`` bytes are held, so that only empty buffers are filled."""
        return self.held > self.limit

    @property
    def batch_bytes(self) -> int:
        """Size of each remote's and each lookup's batches at which ``limit`` suffices for all."""
        holders = max(1, self.remotes + self.lookups)
        return max(LEAST_BATCH, self.limit // (NEEDS * holders))


class Holding:
    """The bytes that one holder has in ``memory``; zero them when it lets go of its events."""

    __slots__ = ("_memory", "_size")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes held."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self._memory.held += size - self._size
        self._size = size
