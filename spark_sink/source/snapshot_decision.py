"""When a start of a query reads documents."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_sink.events.positions import FromNow, Position, time_of
from spark_sink.options.snapshot_options import QueryStart, SnapshotOptions, SnapshotPolicy

# Seconds that one call waits for the end of the delay: Spark stops a query between two calls.
_POLL_SECONDS = 0.5


class SnapshotDecision:
    """Decides when a start of a query begins a snapshot, from the position where it continues.

    Raises OptionError if a custom mode fails.
    """

    def __init__(
        self,
        options: SnapshotOptions,
        position: Position,
        is_in_snapshot: bool,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        start = QueryStart(time_of(position), is_in_snapshot)
        self.policy: SnapshotPolicy = options.policy_for(start)
        """When this start reads documents, and whether events follow."""
        self._is_due = self.policy.at_every_start and not is_in_snapshot
        self._earliest = clock() + options.delay
        self._clock = clock
        self._sleep = sleep

    def is_due(self, position: Position) -> bool:
        """Return whether a snapshot begins at this position."""
        return self.policy.at_first if isinstance(position, FromNow) else self._is_due

    def wait_for_delay(self, *, block: bool) -> bool:
        """Return whether the delay is over; the caller then begins the snapshot.

        Without `block` the call takes half a second at most.
        """
        remaining = self._earliest - self._clock()
        if remaining > 0:
            self._sleep(remaining if block else min(remaining, _POLL_SECONDS))
        if remaining > _POLL_SECONDS and not block:
            return False
        self._is_due = False
        return True
