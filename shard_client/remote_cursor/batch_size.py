"""The number of events that a remote cursor asks for, without I/O."""

_FIRST_BATCH = 101
"""Events of the first batch: as many as servers put into one without a batchSize."""
_LARGEST_BATCH = 100_000
_AVERAGED_BATCHES = 4


class BatchSize:
    """Adapts ``batchSize`` to the size of the received events (docs/design.md#a-remote-cursor).

    ``target_bytes`` is the desired size of a full batch; ``target`` can be changed later. The first
    batches are small, so that the first events arrive early. Only a full batch makes the next one
    larger, by a factor of two at most, since a few small events do not predict the size of later
    events.
    """

    __slots__ = ("_average", "current", "target")

    def __init__(self, target_bytes: int) -> None:
        self.target = target_bytes
        self._average = 0.0
        self.current = _FIRST_BATCH

    def record_batch(self, events: int, size: int) -> None:
        """Record a batch of ``events`` events with a total of ``size`` bytes."""
        average = size / events
        if self._average:
            weight = min(1.0, events / self.current) / _AVERAGED_BATCHES
            # Events larger than the average count at once, since they make batches too large.
            self._average = max(average, self._average + (average - self._average) * weight)
        else:
            self._average = average
        most = min(_LARGEST_BATCH, 2 * self.current) if events >= self.current else self.current
        self.current = min(most, max(1, int(self.target / max(1.0, self._average))))
