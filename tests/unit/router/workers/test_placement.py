"""Choosing the worker of the next connection."""

import pytest

from router.workers.placement import Load, choose_worker


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("pattern", ["s", "m s", "m s s", "m m s"])
def test_simultaneous_connections_are_spread(workers: int, pattern: str) -> None:
    """Each opens a stream, or waits as a monitor."""
    numbers = range(1, workers + 1)
    found = {kind: dict.fromkeys(numbers, 0) for kind in "sm"}
    last = 0
    for kind in pattern.split() * 8 * workers:
        recent = {each: sum(by[each] for by in found.values()) for each in numbers}
        loads = {each: Load(found["s"][each], recent[each]) for each in numbers}
        last = choose_worker(loads, recent, last)
        found[kind][last] += 1
    most, fewest = max(found["s"].values()), min(found["s"].values())
    assert most - fewest <= 3, "a random choice would spread them less evenly"


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        # A busy worker gets no connections while another is idle.
        ({1: Load(streams=1, busy=0.95), 2: Load(streams=1000, busy=0.02)}, 2),
        # Little work does not outweigh streams.
        ({1: Load(streams=3, busy=0.0), 2: Load(streams=2, busy=0.1)}, 2),
        # Of workers with as many streams, that with fewer connections is chosen.
        ({1: Load(connections=3), 2: Load(connections=1)}, 2),
    ],
)
def test_the_worker_with_less_to_do_is_chosen(loads: dict[int, Load], chosen: int) -> None:
    assert {choose_worker(loads, {}, last) for last in (0, 1, 2)} == {chosen}


def test_equal_workers_take_turns() -> None:
    loads = {number: Load() for number in (1, 2, 3)}
    chosen = [0]
    for _ in range(6):
        chosen.append(choose_worker(loads, {}, chosen[-1]))
    assert chosen[1:] == [1, 2, 3, 1, 2, 3]
