"""Cursor ids encode the worker that owns the cursor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.peers.cursor_ids import MOST_WORKERS, CursorIds, new_mark

MARKS = st.integers(0, 2**15 - 1)
WORKERS = st.integers(1, MOST_WORKERS)


@given(worker=WORKERS, asking=WORKERS, mark=MARKS, chance=st.integers(0, 2**40 - 1))
def test_a_cursor_id_encodes_its_worker(worker: int, asking: int, mark: int, chance: int) -> None:
    cursor_id = CursorIds(worker, mark, lambda _bits: chance).new_id()
    assert 0 < cursor_id < 2**63
    assert CursorIds(asking, mark).owner(cursor_id) == worker


@given(cursor_id=st.integers(-(2**63), 2**63 - 1), mark=MARKS)
def test_an_id_without_the_mark_has_no_worker(cursor_id: int, mark: int) -> None:
    marked = cursor_id >= 0 and cursor_id >> 48 == mark
    owner = CursorIds(1, mark).owner(cursor_id)
    assert owner is None or marked
    assert owner is None or 1 <= owner <= MOST_WORKERS


def test_ids_of_one_worker_differ() -> None:
    ids = CursorIds(1, new_mark())
    assert len({ids.new_id() for _ in range(1000)}) == 1000


@pytest.mark.parametrize("worker", [0, -1, MOST_WORKERS + 1])
def test_the_number_of_workers_is_limited(worker: int) -> None:
    with pytest.raises(ValueError, match="a worker's number"):
        CursorIds(worker, 0)
