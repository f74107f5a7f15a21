"""Choosing the worker of the next connection."""

import pytest

from router.workers.placement import Load, choose_worker


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("pattern", ["s", "m s", "m s s", "s u", "u", "m u s"])
def test_simultaneous_connections_are_spread(workers: int, pattern: str) -> None:
    """Each opens a stream, waits as a monitor, or has sent nothing yet."""
    numbers = range(1, workers + 1)
    found = {kind: dict.fromkeys(numbers, 0) for kind in "smu"}
    last = 0
    for kind in pattern.split() * 8 * workers:
        loads = {
            each: Load(found["s"][each], sum(by[each] for by in found.values()), found["m"][each])
            for each in numbers
        }
        last = choose_worker(loads, found["u"], last)
        found[kind][last] += 1
    most, fewest = max(found["s"].values()), min(found["s"].values())
    # A random choice would spread them less evenly; "u" may still open streams.
    assert most - fewest <= (2 if "u" not in pattern else most / 2)


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        # A busy worker gets no connections while another is idle.
        ({1: Load(streams=1, busy=0.95), 2: Load(streams=1000, busy=0.02)}, 2),
        # Little work does not outweigh streams.
        ({1: Load(streams=3, busy=0.0), 2: Load(streams=2, busy=0.1)}, 2),
        # Monitors do not count.
        ({1: Load(connections=3, monitors=3, taken=3), 2: Load(connections=1, taken=1)}, 1),
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
