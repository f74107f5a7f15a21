"""The router's budgets are divided among its workers."""

import pytest

from router.stream_settings import StreamSettings, settings_of_process


@pytest.mark.parametrize("workers", [1, 2, 3, 255])
def test_the_workers_budgets_add_up_to_the_router_s(workers: int) -> None:
    whole = StreamSettings(total_buffer_bytes=1000, user_buffer_bytes=600, replies_bytes=500)
    part = settings_of_process(whole, workers)
    assert whole.total_buffer_bytes - workers < part.total_buffer_bytes * workers <= 1000
    assert 600 - workers < part.user_buffer_bytes * workers <= 600
    assert 500 - workers < part.replies_bytes * workers <= 500
    assert part.stream_buffer_bytes == whole.stream_buffer_bytes
    for bound in ("max_cursors", "max_cursors_per_client", "max_streams", "member_connections"):
        assert getattr(part, bound) * workers <= max(getattr(whole, bound), 4 * workers)
        assert getattr(part, bound) >= getattr(whole, bound) // workers
    if workers == 1:
        assert part == whole


def test_without_a_bound_for_users_each_has_four_fifths() -> None:
    whole = StreamSettings(total_buffer_bytes=1000)
    assert whole.user_buffer == 800
    part = settings_of_process(whole, 2)
    assert (part.user_buffer_bytes, part.user_buffer) == (0, 400)
    assert StreamSettings(total_buffer_bytes=1000, user_buffer_bytes=300).user_buffer == 300
