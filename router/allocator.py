"""How a process allocates, keeps and frees memory: settings of malloc and of Python's collector.

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

from router.limits.memory import Memory

MOST_SLACK: Final = 32 * 1024 * 1024
"""Bytes by which freed memory that malloc keeps may grow."""

LOOK_SECONDS = 10.0
"""Seconds between two looks at the process's memory."""

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 * 1024 * 1024

_YOUNG_OBJECTS = 50_000


async def keep_slack_small(memory: Memory) -> None:
    """Give freed memory back to the system while malloc keeps much of it, until cancelled.

    That is memory that ``memory`` does not count and that the process did without before.
    """
    least = resident_bytes()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
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
