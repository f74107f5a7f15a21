"""Decides, for one start of a query, whether a snapshot begins, and when."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_sink.events.positions import FromNow, Position, time_of
from spark_sink.options.snapshot_modes import QueryStart, SnapshotPolicy
from spark_sink.options.snapshot_options import SnapshotOptions
from spark_sink.snapshot.plan import SnapshotPlan

# Seconds that one call waits for the end of the delay: Spark stops a query between two calls.
_POLL_SECONDS = 0.5


class SnapshotDecision:
    """Decides for one start of a query, which continues from a position and a snapshot's plan.

    Raises OptionError if a custom mode fails.
    """

    def __init__(
        self,
        options: SnapshotOptions,
        position: Position,
        plan: SnapshotPlan | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        in_progress = plan is not None and not plan.ended
        self.policy: SnapshotPolicy = options.policy_for(QueryStart(time_of(position), in_progress))
        """When this start reads documents, and whether events follow."""
        self._is_due = self.policy.at_every_start and not in_progress
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
