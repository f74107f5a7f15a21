"""Who gets the next connection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.workers.placement import Load, choose_worker


@given(workers=st.integers(1, 8), streams=st.integers(1, 40))
def test_streams_opened_one_after_the_other_are_spread_evenly(workers: int, streams: int) -> None:
    open_streams = dict.fromkeys(range(1, workers + 1), 0)
    last = 0
    for _ in range(streams):
        loads = {
            number: Load(streams=count, connections=count, taken=count)
            for number, count in open_streams.items()
        }
        last = choose_worker(loads, {}, last)
        open_streams[last] += 1
    assert max(open_streams.values()) - min(open_streams.values()) <= 1


@given(opens=st.lists(st.booleans(), min_size=1, max_size=24), workers=st.integers(1, 4))
def test_connections_that_come_at_once_are_spread_however_soon_streams_open(
    opens: list[bool], workers: int
) -> None:
    lately = dict.fromkeys(range(1, workers + 1), 0)
    streams = dict(lately)
    last = 0
    for opens_at_once in opens:
        loads = {number: Load(streams=count) for number, count in streams.items()}
        last = choose_worker(loads, lately, last)
        lately[last] += 1
        streams[last] += opens_at_once
    assert max(streams.values()) - min(streams.values()) <= 3
    assert max(lately.values()) - min(lately.values()) <= 3
    if all(opens) or not any(opens):
        assert max(lately.values()) - min(lately.values()) <= 1


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_a_monitor_and_a_stream_of_each_client_in_turn_are_spread(workers: int) -> None:
    lately = dict.fromkeys(range(1, workers + 1), 0)
    streams = dict(lately)
    last = 0
    for number in range(8 * workers):
        loads = {each: Load(streams=count) for each, count in streams.items()}
        last = choose_worker(loads, lately, last)
        lately[last] += 1
        streams[last] += number % 2
    assert max(streams.values()) - min(streams.values()) <= 2


def test_connections_that_are_on_their_way_count() -> None:
    loads = {1: Load(), 2: Load()}
    given_out: dict[int, int] = {1: 0, 2: 0}
    last = 0
    for _ in range(10):
        last = choose_worker(loads, given_out, last)
        given_out[last] += 1
    assert given_out == {1: 5, 2: 5}


def test_a_busy_worker_gets_none_while_another_is_idle() -> None:
    loads = {1: Load(streams=1, busy=0.95), 2: Load(streams=1000, busy=0.02)}
    assert choose_worker(loads, {}, 0) == 2


def test_connections_that_come_at_once_do_not_all_go_where_it_is_quiet() -> None:
    loads = {1: Load(streams=5, busy=0.4), 2: Load(streams=5, busy=0.1)}
    lately = {1: 0, 2: 0}
    for _ in range(8):
        lately[choose_worker(loads, lately, 0)] += 1
    assert lately == {1: 3, 2: 5}


def test_little_work_does_not_outweigh_streams() -> None:
    loads = {1: Load(streams=3, busy=0.0), 2: Load(streams=2, busy=0.1)}
    assert choose_worker(loads, {}, 0) == 2


def test_monitors_do_not_count() -> None:
    loads = {1: Load(connections=3, monitors=3, taken=3), 2: Load(connections=1, taken=1)}
    assert choose_worker(loads, {}, 2) == 1


def test_equals_take_turns() -> None:
    loads = {number: Load() for number in (1, 2, 3)}
    chosen = [0]
    for _ in range(6):
        chosen.append(choose_worker(loads, {}, chosen[-1]))
    assert chosen[1:] == [1, 2, 3, 1, 2, 3]
