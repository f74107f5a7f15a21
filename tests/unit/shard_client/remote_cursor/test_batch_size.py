"""The batch size to request, given the events received so far."""

import pytest

from shard_client.remote_cursor.remote_cursor import BatchSize

KIB = 1024


def test_full_batches_lead_to_the_target():
    size = BatchSize(1024 * KIB)
    for _ in range(20):
        size.arrived(size.current, size.current * 500)
    assert 0.75 <= size.current * 500 / (1024 * KIB) <= 1


@pytest.mark.parametrize("events", [1, 50, 100])
def test_a_few_small_events_do_not_raise_the_batch_size(events: int):
    """A batch of large events after them must not exceed the budget."""
    size = BatchSize(1024 * KIB)
    first = size.current
    for _ in range(20):
        size.arrived(events, events * 50)
    assert size.current <= 2 * first


def test_the_size_at_most_doubles_after_full_batches():
    size = BatchSize(1024 * KIB)
    for _ in range(5):
        before = size.current
        size.arrived(before, before * 50)
        assert before < size.current <= 2 * before


def test_larger_events_reduce_the_size_immediately():
    size = BatchSize(1024 * KIB)
    for _ in range(10):
        size.arrived(size.current, size.current * 500)
    size.arrived(size.current, size.current * 50_000)
    assert size.current * 50_000 <= 1024 * KIB
    size.arrived(1, 100_000_000)
    assert size.current == 1
