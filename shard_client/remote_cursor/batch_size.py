"""The number of events to request per batch for a given size in bytes."""

_FIRST = 101
_MOST = 100_000
_MEMORY = 4


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
        self.current = _FIRST

    def arrived(self, events: int, size: int) -> None:
        """Record a batch of ``events`` events with a total of ``size`` bytes."""
        average = size / events
        if self._average:
            weight = min(1.0, events / self.current) / _MEMORY
            # Events larger than the average count at once, since they make batches too large.
            self._average = max(average, self._average + (average - self._average) * weight)
        else:
            self._average = average
        most = min(_MOST, 2 * self.current) if events >= self.current else self.current
        self.current = _rounded(min(most, max(1, int(self.target / max(1.0, self._average)))))


def _rounded(number: int) -> int:
    """Keep the three leading bits, so that one encoded getMore can be reused for many batches."""
    shift = max(0, number.bit_length() - 3)
    return number >> shift << shift
