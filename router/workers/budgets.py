"""A worker's part of the memory and of the notes that the router may take."""

from dataclasses import replace

from router.cursors.limits import StreamLimits


def limits_of_worker(limits: StreamLimits, workers: int) -> StreamLimits:
    """Return what one of ``workers`` may take, so that all keep to the router's budgets.

    What bounds one stream or one remote stays as it is.
    """
    return replace(
        limits,
        total_buffer_bytes=max(1, limits.total_buffer_bytes // workers),
        replies_bytes=max(1, limits.replies_bytes // workers),
        nudges_per_second=limits.nudges_per_second / workers,
        nudge_burst=max(1.0, limits.nudge_burst / workers),
        nudge_share=limits.nudge_share / workers,
    )
