from hypothesis import given
from hypothesis import strategies as st

from router.stream_settings import StreamSettings
from router.streams.prefetch import Prefetch

MIB = 1024 * 1024


@given(st.integers(1, 200), st.data())
def test_whoever_asks_in_whatever_order_the_budget_is_kept_and_nobody_runs_dry(remotes, data):
    limits = StreamSettings()
    prefetch = Prefetch(limits)
    batch = prefetch.batch_bytes(remotes)
    buffered = [0] * remotes
    for _ in range(data.draw(st.integers(0, 300))):
        one = data.draw(st.integers(0, min(remotes - 1, 5)))
        if prefetch.allows(buffered[one], sum(buffered), remotes):
            buffered[one] += batch
    assert sum(buffered) <= limits.stream_buffer_bytes
    assert max(buffered) <= limits.remote_buffer_bytes
    for held in buffered:
        # Each may have one batch at hand and another on its way, whatever the others have.
        if held <= batch:
            assert prefetch.allows(held, sum(buffered), remotes)


def test_a_remote_that_is_alone_at_work_may_use_what_the_others_leave():
    limits = StreamSettings()
    assert Prefetch(limits).allows(12 * MIB, 12 * MIB, 5)
    assert not Prefetch(limits).allows(14 * MIB, 17 * MIB, 20)
    assert not Prefetch(limits).allows(16 * MIB, 16 * MIB, 2)


def test_batches_become_smaller_where_many_share_the_buffer():
    prefetch = Prefetch(StreamSettings())
    sizes = [prefetch.batch_bytes(remotes) for remotes in (1, 4, 5, 100, 1000)]
    assert sizes == [4 * MIB, 4 * MIB, 16 * MIB // 5, 16 * MIB // 100, 16 * MIB // 1000]
