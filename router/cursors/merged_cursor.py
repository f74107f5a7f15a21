"""What a client sees: one cursor id, many remote cursors behind it."""

from typing import NamedTuple


class Batch(NamedTuple):
    """One reply's worth of a merged stream, in slices.

    ``cursor_id`` is 0 once the stream has ended; ``events`` are raw BSON, ``size`` their bytes;
    ``pbrt`` the raw postBatchResumeToken document.
    """

    cursor_id: int
    events: list[bytes]
    size: int
    pbrt: bytes


class MergedCursor:
    """A client's cursor on a merged stream (docs/design.md, section 5)."""

    cursor_id: int
    namespace: str

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return what is ready, at most ``batch_size`` events; else wait up to ``max_time`` seconds.

        Then an empty batch, with a postBatchResumeToken that may have moved. Raises CommandError
        when the stream has failed, labelled as mongos would. Cancelling loses nothing.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Kill the remote cursors and close their connections; bounded in time, may be repeated."""
        raise NotImplementedError
