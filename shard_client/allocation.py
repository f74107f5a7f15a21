"""Process-wide memory settings for moving batches, applied once when a router starts.

Batches of a MiB are allocated and freed many times a second. glibc's malloc returns each one to the
kernel and maps the pages again, at the cost of a page fault per 4 KiB. Python's collector scans new
events although they hold no cycles. With 2 KiB events this can take half the CPU time of splitting
and rebuilding, depending on which block is at the end of the heap.
"""

import ctypes
import gc
from contextlib import suppress

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 * 1024 * 1024

_YOUNG_OBJECTS = 50_000


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
