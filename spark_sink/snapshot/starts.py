"""Decides, for one start of a query, whether a snapshot begins, and when."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_sink.positions import FromNow, Position, time_of
from spark_sink.snapshot.modes import QueryStart, SnapshotPolicy
from spark_sink.snapshot.plan import SnapshotPlan
from spark_sink.snapshot.snapshot_options import SnapshotOptions

# Seconds that one call waits for the end of the delay: Spark can stop a query between two calls.
_TURN = 0.5


class SnapshotStarts:
    """The decisions of one start.

    options: when a query reads documents; position, plan: of the offset that this start goes on
    from; clock, sleep: for tests. Raises OptionError if a custom mode fails.
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
        self._begins = clock() + options.delay
        self._clock = clock
        self._sleep = sleep

    def is_due(self, position: Position) -> bool:
        """Whether a snapshot begins at this position."""
        return self.policy.at_first if isinstance(position, FromNow) else self._is_due

    def may_begin(self, *, waits: bool) -> bool:
        """Whether the delay is over; a snapshot that is due has begun then.

        waits: do not return before it is; otherwise the call takes half a second at most.
        """
        remaining = self._begins - self._clock()
        if remaining > 0:
            self._sleep(remaining if waits else min(remaining, _TURN))
        if remaining > _TURN and not waits:
            return False
        self._is_due = False
        return True
