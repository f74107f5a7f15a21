from bisect import bisect_right
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.limits.memory import weight
from router.stream.merge import event_log
from router.stream.merge.event_log import ELEMENT_OVERHEAD, JOIN_BYTES, EventLog, cut

KEY_SIZE = 6


def key(number: int) -> bytes:
    return b"%06d" % number


def key_of(event: bytes) -> bytes:
    return event[:KEY_SIZE]


@pytest.fixture(autouse=True, scope="module")
def _short_keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_log, "event_key", key_of)
        yield


def event(number: int, size: int) -> bytes:
    return key(number) + b"x" * (size - KEY_SIZE)


def events(*sizes: int, first: int = 0) -> list[bytes]:
    return [event(first + n, size) for n, size in enumerate(sizes)]


# How a batch is cut.


@given(
    st.lists(st.integers(KEY_SIZE, 40), min_size=1, max_size=30),
    st.none() | st.integers(0, 10),
    st.integers(-5, 400),
    st.booleans(),
)
def test_a_cut_is_the_longest_front_that_fits(sizes, limit, space, first):
    fits = used = 0
    for size in sizes[:limit]:
        if used + size > space and (fits or not first):
            break
        fits += 1
        used += size + ELEMENT_OVERHEAD
    taken, size = cut(events(*sizes)[:limit], space, first=first)
    assert [len(raw) for raw in taken] == sizes[:fits]
    assert size == sum(sizes[:fits])


# The ring.


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(KEY_SIZE, JOIN_BYTES), min_size=1, max_size=4),
            st.integers(0, 3 * JOIN_BYTES),
        ),
        max_size=25,
    ),
    st.lists(st.booleans(), min_size=100, max_size=100),
)
def test_the_log_keeps_the_latest_events(appends, repeats):
    """Compare content, key positions and reads from each number with those of a plain list."""
    log = EventLog(b"")
    everything: list[bytes] = []
    number = 0
    for sizes, keep in appends:
        block = []
        for size in sizes:
            number += not repeats[len(everything) + len(block)]
            block.append(event(number, size))
        log.append(list(block), sum(sizes))
        everything += block
        log.trim(keep)
        assert log.end == len(everything)
        here = everything[log.start :]
        assert here[-len(block) :] == block
        held = sum(map(len, here))
        assert log.memory == weight(len(here), held)
        assert held <= max(keep, JOIN_BYTES, sum(sizes))
        gone = everything[: log.start]
        assert log.floor == (key_of(gone[-1]) if gone else b"")

        keys = [key_of(one) for one in everything]
        for place in range(log.start, log.end):
            found = log.number_beyond(keys[place])
            assert found == bisect_right(keys, keys[place])
            read, size = log.read(place, 2, 1 << 30, first=True)
            assert read == everything[place : place + len(read)]
            assert size == sum(map(len, read))
            rest = log.rest_of_block(place)
            assert rest == everything[place : place + len(rest)]
            assert rest[:2] == read
            equal = log.events_with_key(place, keys[place])
            assert equal
            assert {key_of(one) for one in equal} == {keys[place]}
        assert log.number_beyond(b"~") == log.end
