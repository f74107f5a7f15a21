"""Each process's share of the router's bounds."""

from dataclasses import replace

from router.stream_settings import StreamSettings


def settings_of_process(limits: StreamSettings, count: int) -> StreamSettings:
    """Return the settings of one of ``count`` processes, which together keep the router's bounds.

    Bounds of a single stream or remote do not change.
    """
    if count == 1:
        return limits

    def part(whole: int, least: int = 1) -> int:
        return max(least, whole // count)

    return replace(
        limits,
        total_buffer_bytes=part(limits.total_buffer_bytes),
        user_buffer_bytes=part(limits.user_buffer_bytes, 0),
        replies_bytes=part(limits.replies_bytes),
        max_cursors=part(limits.max_cursors),
        max_cursors_per_client=part(limits.max_cursors_per_client),
        max_cursors_per_user=part(limits.max_cursors_per_user),
        max_streams=part(limits.max_streams),
        max_streams_per_client=part(limits.max_streams_per_client),
        max_streams_per_user=part(limits.max_streams_per_user),
        member_connections=part(limits.member_connections, 4),
        noops_per_second=limits.noops_per_second / count,
        noop_burst=max(1.0, limits.noop_burst / count),
        noop_share=limits.noop_share / count,
    )
