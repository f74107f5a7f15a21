"""The memory that the events of a process take: in all, each user's part, and each reply's."""

from typing import Final
from weakref import WeakValueDictionary

from router.stream_settings import StreamSettings

LEAST_BATCH: Final = 64 * 1024
"""Smallest target size of a shard's batch, and of a reply to a client, in bytes."""

NEEDS: Final = 4
"""Number of batches for which a remote may need memory: one being merged and one in flight, doubled
for the receive buffer and the overhead of Python objects. A cursor with document lookups needs as
much: events with their documents, and the reply that carries the next documents."""

EVENT_OVERHEAD: Final = 300
"""Bytes of memory that an event takes besides its BSON: its sort key, and Python's objects."""


def weight(events: int, size: int) -> int:
    """Return the bytes of memory that ``events`` events of ``size`` bytes in all take."""
    return size + EVENT_OVERHEAD * events


def reply_share(settings: StreamSettings, clients: int) -> int:
    """Return the bytes of events that one reply may have while ``clients`` read streams."""
    share = settings.replies_bytes // max(1, clients)
    return min(settings.reply_bytes, max(LEAST_BATCH, share))


class Memory:
    """Counts the bytes of events that a process or one of its users holds, and their holders.

    ``limit`` is the number of bytes that should not be exceeded. A remote with an empty buffer may
    always fetch one batch, since the merge could stop otherwise, and a cursor with document lookups
    may always complete one event. Batches therefore shrink as the number of remotes and of such
    cursors grows, down to a size below which no more are admitted.

    Args:
        limit: bytes that should not be exceeded.
        user_limit: the same for one user's part; None for as many as in all.
        whole: the memory of which this one is a part, which counts everything counted here, too.
    """

    def __init__(
        self, limit: int, user_limit: int | None = None, *, whole: "Memory | None" = None
    ) -> None:
        self.limit = limit
        self.user_limit = limit if user_limit is None else min(limit, user_limit)
        self.held = 0
        self.remotes = 0
        """Number of open remotes of all streams."""
        self.lookups = 0
        """Number of open cursors with document lookups."""
        self._whole = whole
        self._parts: WeakValueDictionary[str, Memory] = WeakValueDictionary()

    def of(self, user: str | None) -> "Memory":
        """Return the part of ``user``; the whole if there is no user.

        A part exists as long as something refers to it.
        """
        if user is None:
            return self
        part = self._parts.get(user)
        if part is None:
            part = self._parts[user] = Memory(self.user_limit, whole=self)
        return part

    def add(self, *, held: int = 0, remotes: int = 0, lookups: int = 0) -> None:
        """Count more bytes, remotes and cursors with document lookups, or fewer if negative."""
        self.held += held
        self.remotes += remotes
        self.lookups += lookups
        if self._whole is not None:
            self._whole.add(held=held, remotes=remotes, lookups=lookups)

    @property
    def short(self) -> bool:
        """Whether more than ``limit`` bytes are held, so that only empty buffers are filled."""
        return self.held > self.limit or (self._whole is not None and self._whole.short)

    @property
    def batch_bytes(self) -> int:
        """Size of each remote's and each lookup's batches at which ``limit`` suffices for all."""
        holders = max(1, self.remotes + self.lookups)
        fitting = max(LEAST_BATCH, self.limit // (NEEDS * holders))
        return fitting if self._whole is None else min(fitting, self._whole.batch_bytes)


class Holding:
    """The bytes that one holder has in ``memory``; zero them when it lets go of its events."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes held."""
        return self._size

    @size.setter
    def size(self, size: int) -> None:
        self.memory.add(held=size - self._size)
        self._size = size
