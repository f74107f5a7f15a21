"""How many events to ask for at a time, so that a batch has about the size wanted."""

_FIRST = 101
_MOST = 100_000
_MEMORY = 4


class BatchSize:
    """Adapts ``batchSize`` to the size of the events that come (docs/design.md, section 6).

    ``target_bytes`` is the size that a full batch should have; ``target`` may be changed. The first
    batches are small, so that the first events come early; only full ones make the next one larger,
    twice at most, since a few small events say little of those to come.
    """

    __slots__ = ("_average", "current", "target")

    def __init__(self, target_bytes: int) -> None:
        self.target = target_bytes
        self._average = 0.0
        self.current = _FIRST

    def arrived(self, events: int, size: int) -> None:
        """Take note of a batch of ``events`` events with ``size`` bytes in all."""
        average = size / events
        if self._average:
            weight = min(1.0, events / self.current) / _MEMORY
            # Events larger than thought count at once: they are what makes batches too large.
            self._average = max(average, self._average + (average - self._average) * weight)
        else:
            self._average = average
        most = min(_MOST, 2 * self.current) if events >= self.current else self.current
        self.current = _rounded(min(most, max(1, int(self.target / max(1.0, self._average)))))


def _rounded(number: int) -> int:
    """Keep the three leading bits, so that the same request serves for many batches."""
    shift = max(0, number.bit_length() - 3)
    return number >> shift << shift
