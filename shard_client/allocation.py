"""Process-wide memory settings for moving batches: what a router calls once when it starts.

Batches of a MiB come and go many times a second. glibc's malloc gives each back to the kernel and
takes the pages anew, at a page fault for each 4 KiB, and Python's collector looks through new
events although they hold no cycles. On 2 KiB events that can be half the CPU of splitting and
rebuilding (bench/micro_allocation.py), depending on what happens to lie at the heap's end.
"""

import ctypes
import gc

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 * 1024 * 1024

_YOUNG_OBJECTS = 50_000


def keep_freed_memory(limit: int = 64 * 1024 * 1024) -> bool:
    """Have malloc keep up to ``limit`` freed bytes at the heap's top for the next batches.

    Returns False where malloc has no such setting (not glibc); nothing is changed then.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trims = mallopt(_M_TRIM_THRESHOLD, limit)
    maps = mallopt(_M_MMAP_THRESHOLD, min(limit, _LARGEST_MMAP_THRESHOLD))
    return bool(trims and maps)


def collect_less_often(young_objects: int = _YOUNG_OBJECTS) -> None:
    """Let the garbage collector run after so many new containers instead of 700.

    To be called when all is imported: what is there by then is never looked through again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young_objects, *gc.get_threshold()[1:])
