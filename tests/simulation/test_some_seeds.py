"""The simulation passes a few seeds beyond those of test_simulation.py: for each commit."""

import pytest

from tests.simulation.repeatable import simulate

FIRST = 180
SEEDS = 20


@pytest.mark.timeout(900)
def test_some_seeds_pass() -> None:
    arguments = ("--first", str(FIRST), "--seeds", str(SEEDS), "--jobs", "1")
    code, printed = simulate(*arguments)
    assert code == 0, printed
    assert f"{SEEDS} seeds" in printed
