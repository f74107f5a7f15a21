import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.merge.merger import Block
from router.merge.outbox import ELEMENT_OVERHEAD, Outbox


def block(*sizes: int) -> Block:
    events = [(b"%d" % n, b"x" * size) for n, size in enumerate(sizes)]
    return Block(events, sum(sizes), {0: sum(sizes)})


def outbox(*sizes: int) -> Outbox:
    made = Outbox()
    made.put(block(*sizes))
    return made


@given(
    st.lists(st.integers(5, 40), min_size=1, max_size=30),
    st.lists(st.tuples(st.none() | st.integers(0, 10), st.integers(-5, 200)), max_size=12),
)
def test_takes_are_the_longest_prefix_that_fits(sizes, takes):
    made = outbox(*sizes)
    left = list(sizes)
    for limit, space in takes:
        fits = 0
        used = 0
        for size in left[:limit]:
            if used + size > space and fits:
                break
            fits += 1
            used += size + ELEMENT_OVERHEAD
        taken, size = made.take(limit, space, first=True)
        assert [len(raw) for _, raw in taken] == left[:fits]
        assert size == sum(left[:fits])
        left = left[fits:]
        assert bool(made) == bool(left)
        assert made.share(0) == (sum(sizes) if left else 0)


def test_an_event_too_large_for_the_rest_of_a_batch_waits():
    made = outbox(5, 100)
    assert len(made.take(None, 50, first=True)[0]) == 1
    assert made.take(None, 50, first=False) == ([], 0)
    assert len(made.take(None, 50, first=True)[0]) == 1


@pytest.mark.parametrize("space", [125, 124])
def test_the_last_event_needs_no_room_for_a_next_one(space):
    made = outbox(50, 65)
    assert len(made.take(None, space, first=True)[0]) == (2 if space == 125 else 1)
