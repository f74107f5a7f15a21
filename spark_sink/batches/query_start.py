"""The start of a streaming query as a cluster time, where a stream "from now" begins.

Spark asks for the first offset seconds after `start()` was called, in a process that it launches
for the query. The start of that process gives the time of `start()`, less the time of the launch;
`load()`, which precedes `start()`, is a lower bound.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import next_tick

# The most seconds from start() to the start of the process: a busy JVM needs two.
LAUNCH_SECONDS = 5.0

_IMPORTED = time.time()


def query_started(loaded: float, born: float | None = None) -> float:
    """Return the time of `start()`, or up to LAUNCH_SECONDS before; seconds since 1970.

    `loaded` is the time of `load()`, `born` that of this process's start if it is known.
    """
    return max(loaded, (process_start() if born is None else born) - LAUNCH_SECONDS)


def process_start() -> float:
    """Return the start of this process, in seconds since 1970, or else of this module's import."""
    try:
        # Fields after the name, which is in parentheses; the 22nd of all is the start in ticks.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED


def cluster_time_at(moment: float, skew: float, newest: Timestamp) -> Timestamp:
    """Return the first cluster time that an event after `moment` can have.

    Args:
        moment: by this machine's clock, in seconds since 1970.
        skew: seconds that the servers' clocks are ahead of it.
        newest: the newest cluster time, which all later ones follow.
    """
    second = Timestamp(int(moment + skew), 0)
    return min(second, next_tick(newest))
