"""A worker's part of the memory that the router may take."""

from dataclasses import replace

from router.cursors.limits import StreamLimits


def limits_of_worker(limits: StreamLimits, workers: int) -> StreamLimits:
    """Return what one of ``workers`` may take, so that all keep to the router's budgets in bytes.

    What bounds one stream or one remote stays as it is.
    """
    return replace(
        limits,
        total_buffer_bytes=max(1, limits.total_buffer_bytes // workers),
        replies_bytes=max(1, limits.replies_bytes // workers),
    )
