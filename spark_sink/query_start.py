"""When a streaming query was started, as a cluster time: where a stream "from now" begins.

Spark asks for the first offset seconds after `start()` was called, in a process that it launches
for the query. That process's birth tells the time of `start()` to within the time that the launch
takes; `load()`, which came before `start()`, bounds it from below.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from bson.timestamp import Timestamp

# Seconds from start() to the birth of the process, at most: a busy JVM takes two.
LAUNCH_SECONDS = 5.0

_IMPORTED = time.time()


def query_started(loaded: float, born: float | None = None) -> float:
    """The time of `start()` or up to LAUNCH_SECONDS before it, never after it; seconds since 1970.

    loaded: when `load()` was called; born: when this process was; found out if not given.
    """
    return max(loaded, (process_birth() if born is None else born) - LAUNCH_SECONDS)


def process_birth() -> float:
    """When this process was started, seconds since 1970; where unknown, when this was imported."""
    try:
        # Fields after the name, which is in parentheses; the 22nd of all is the start in ticks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED


def cluster_time_at(moment: float, skew: float, newest: Timestamp) -> Timestamp:
    """The first cluster time that an event after `moment` can have.

    moment: seconds since 1970 by this machine's clock; skew: how far the servers' clocks are ahead
    of it; newest: the newest cluster time of all, which everything later lies behind.
    """
    second = Timestamp(int(moment + skew), 0)
    return min(second, Timestamp(newest.time, newest.inc + 1))
