"""Two starts of one job, paused at every step of their commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.two_starts import check_two_starts, pause_starts


@pytest.mark.parametrize("seed", range(5))
def test_of_two_starts_no_event_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    pause_starts(monkeypatch)
    check_two_starts(str(tmp_path / "job"), tmp_path, seed)
