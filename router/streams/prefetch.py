"""Limits on how far ahead the remotes of a stream are read (docs/design.md, section 6)."""

from router.stream_settings import StreamSettings


class Prefetch:
    """One stream's budget for reading ahead; does no I/O. All sizes are in bytes of memory.

    Half of the stream's budget is divided evenly among the remotes: if the others used up the
    budget, a remote with an empty buffer would hold the gate and stop them all. The other half is
    for remotes that are ahead.
    """

    __slots__ = ("_limits",)

    def __init__(self, limits: StreamSettings) -> None:
        self._limits = limits

    def batch_bytes(self, remotes: int) -> int:
        """Return the target size of batches, of which two fit into each remote's even share."""
        return max(1, min(self._limits.batch_target_bytes, self._half // (2 * remotes)))

    def allows(self, buffered: int, all_buffered: int, remotes: int) -> bool:
        """Return whether a remote with ``buffered`` bytes may fetch another batch.

        ``all_buffered`` is the number of bytes buffered for all ``remotes``. A remote with an empty
        buffer always may. The gate holder's buffer is empty once the ready events have been taken,
        so the budget never stops the gate.
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
