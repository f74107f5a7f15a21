"""What a process counts of its clients and their commands, and how late its event loop is."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from router.counters.loads import Histogram

_LAG_INTERVAL: Final = 0.25


@dataclass(slots=True)
class Counters:
    """The counters of serverStatus since the process began."""

    connections: int = 0
    connections_created: int = 0
    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    passed_through: int = 0
    passed_on: int = 0
    awaiting_hellos: int = 0
    user_asserts: int = 0
    errors: dict[int, int] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)
    """How often each command was run, by its official name."""
    failures: Counter[str] = field(default_factory=Counter)
    """How often the router itself answered it with an error."""
    loop_lag: Histogram = field(default_factory=Histogram)
    """How late timers of the event loop ran."""


async def measure_lag(histogram: Histogram) -> None:
    """Record the event loop's lag, how late a timer runs, four times a second, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _LAG_INTERVAL
        await asyncio.sleep(_LAG_INTERVAL)
        histogram.record(max(0.0, loop.time() - due))
