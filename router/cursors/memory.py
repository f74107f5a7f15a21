"""What all streams of a process hold in memory together."""


class Memory:
    """Counts the bytes of events that streams hold; ``limit`` is what they should keep to."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    @property
    def short(self) -> bool:
        """Whether streams should take in no more than they need to go on."""
        return self.held > self.limit
