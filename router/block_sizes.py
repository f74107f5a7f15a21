"""The sizes into which a merged stream divides its events."""

from typing import Final, NamedTuple


class BlockSizes(NamedTuple):
    """Sizes of the runs, blocks and log entries of a merged stream."""

    events: int = 2000
    """Approximate maximum of events per block: few enough to stay in a core's own cache during the
    merge, many enough that cutting them out of each remote's run costs little."""
    coalesce_bytes: int = 256 * 1024
    """Size up to which a remote's batches are joined into one run, so that many tiny batches stay
    cheap."""
    join_bytes: int = 64 * 1024
    """Size up to which a log joins blocks, so that a log of single events has few of them."""


DEFAULT_BLOCK_SIZES: Final = BlockSizes()
