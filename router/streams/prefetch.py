"""How far ahead the remotes of a stream are read (docs/design.md, section 6)."""

from router.stream_settings import StreamSettings


class Prefetch:
    """One stream's budget for reading ahead, pure. All sizes in bytes of memory.

    Half of the stream's budget is shared evenly: a remote that ran dry because others have used the
    budget up would stop them all at the gate. The other half is for whoever is ahead.
    """

    __slots__ = ("_limits",)

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits

    def batch_bytes(self, remotes: int) -> int:
        """Return the size that batches should have: two of each fit into the even shares."""
        return max(1, min(self._limits.batch_target_bytes, self._half // (2 * remotes)))

    def allows(self, buffered: int, all_buffered: int, remotes: int) -> bool:
        """Tell whether a remote with ``buffered`` bytes may fetch another batch.

        ``all_buffered`` are those of all ``remotes``. One that has nothing buffered always may: the
        gate holder has nothing once what is ready has been taken, so the gate never stands still
        for want of budget.
        """
        if not buffered:
            return True
        batch = self.batch_bytes(remotes)
        if buffered + batch > self._limits.remote_buffer_bytes:
            return False
        if (buffered + batch) * remotes <= self._half:
            return True
        return all_buffered + batch * remotes <= self._half

    @property
    def _half(self) -> int:
        return self._limits.stream_buffer_bytes // 2
