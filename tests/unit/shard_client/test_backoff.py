from hypothesis import given
from hypothesis import strategies as st

from shard_client.backoff import Backoff
from shard_client.error_codes import ErrorCode
from shard_client.errors import (
    RESUMABLE_LABEL,
    CommandError,
    NetworkError,
    blames_member,
    from_network,
    is_resumable,
)
from shard_client.remote_cursor.remote_cursor import BatchSize


@given(st.floats(min_value=0, max_value=1, exclude_max=True), st.integers(1, 40))
def test_pauses_grow_to_their_limit_and_are_never_zero(chance: float, tries: int):
    backoff = Backoff(0.01, 2.0, lambda: chance)
    pauses = [backoff.next_pause() for _ in range(tries)]
    assert pauses == sorted(pauses)
    assert all(0.0025 <= pause <= 2.0 for pause in pauses)
    backoff.reset()
    assert backoff.next_pause() == pauses[0]


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(100, 20_000)), min_size=1))
def test_batches_have_about_the_target_size(batches: list[tuple[int, int]]):
    batch_size = BatchSize(1_000_000)
    for events, each in batches:
        batch_size.arrived(events, events * each)
        assert 1 <= batch_size.current <= 100_000
        # The estimate is never below the size of the latest events.
        assert batch_size.current * each <= 1_000_000 or batch_size.current == 1


def test_the_size_adapts_to_small_events_after_large_ones():
    batch_size = BatchSize(1_000_000)
    batch_size.arrived(1, 10_000_000)
    assert batch_size.current == 1
    for _ in range(100):
        batch_size.arrived(batch_size.current, batch_size.current * 500)
    assert batch_size.current > 1000


def test_errors_are_classified_as_resumable():
    resumable = (6, 43, 91, 133, 189, 237, 262, 10107, 11600, 11602, 13436)
    assert all(is_resumable(CommandError(code, "")) for code in resumable)
    assert is_resumable(CommandError(1, "", labels=[RESUMABLE_LABEL]))
    assert not any(is_resumable(CommandError(code, "")) for code in (1, 13, 40, 280, 286, 10334))


def test_a_failure_is_attributed_to_the_member_or_not():
    assert blames_member(CommandError(ErrorCode.NotWritablePrimary, ""))
    assert blames_member(from_network(NetworkError("cut"), "h:1"))
    assert not blames_member(CommandError(ErrorCode.CursorNotFound, ""))
