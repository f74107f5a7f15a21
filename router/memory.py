"""The memory that all streams of a process use together, each user's part of it, and what frees it.

Batches of a MiB are allocated and freed many times a second. glibc's malloc returns each one to the
kernel and maps the pages again, at the cost of a page fault per 4 KiB. Python's collector scans new
events although they hold no cycles. With 2 KiB events this can take half the CPU time of splitting
and rebuilding, depending on which block is at the end of the heap.
"""

import asyncio
import ctypes
import gc
import os
import resource
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

LEAST_BATCH: Final = 64 * 1024
"""Smallest target size of a batch, in bytes."""

NEEDS: Final = 4
"""Number of batches for which a remote may need memory: one being merged and one in flight, doubled
for the receive buffer and the overhead of Python objects. A cursor with document lookups needs as
much: events with their documents, and the reply that carries the next documents."""

EVENT_OVERHEAD: Final = 300
"""Bytes of memory that an event takes besides its BSON: its sort key, and Python's objects."""

MOST_SLACK: Final = 32 * 1024 * 1024
"""Bytes by which freed memory that malloc keeps may grow."""

LOOK = 10.0
"""Seconds between two looks at the process's memory."""

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 * 1024 * 1024

_YOUNG_OBJECTS = 50_000


def weight(events: int, size: int) -> int:
    """Return the bytes of memory that ``events`` events of ``size`` bytes in all take."""
    return size + EVENT_OVERHEAD * events


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

    __slots__ = ("_size", "memory")

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


async def keep_slack_small(memory: Memory) -> None:
    """Give freed memory back to the system while malloc keeps much of it, until cancelled.

    That is memory that ``memory`` does not count and that the process did without before.
    """
    least = resident_bytes()
    while True:
        await asyncio.sleep(LOOK)
        slack = resident_bytes() - memory.held
        least = min(least, slack)
        if slack - least > MOST_SLACK:
            give_back_freed_memory()


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM now."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * _PAGE_SIZE
    except OSError:  # not Linux: the peak is the next best figure
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def keep_freed_memory(limit: int = 64 * 1024 * 1024) -> bool:
    """Make malloc keep up to ``limit`` freed bytes at the top of the heap for the next batches.

    Returns False and changes nothing if malloc has no such setting (not glibc).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trims = mallopt(_M_TRIM_THRESHOLD, limit)
    maps = mallopt(_M_MMAP_THRESHOLD, min(limit, _LARGEST_MMAP_THRESHOLD))
    return bool(trims and maps)


def give_back_freed_memory() -> None:
    """Return to the kernel what malloc has kept, all over the heap; takes some milliseconds."""
    with suppress(AttributeError, OSError, TypeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def collect_less_often(young_objects: int = _YOUNG_OBJECTS) -> None:
    """Run the garbage collector after ``young_objects`` new containers instead of 700.

    Call this after all imports: objects that exist by then are never scanned again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young_objects, *gc.get_threshold()[1:])
