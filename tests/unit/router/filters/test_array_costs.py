"""The elements of an array cost an index about as much each, however many there are."""

from time import process_time

from router.filters.bounds import MOST_WORK
from router.filters.index import FilterIndex
from tests.unit.router.filters.test_bounds import event, index_of

FEW, MANY = MOST_WORK // 10, MOST_WORK * 9 // 10


def seconds(index: FilterIndex[int], data: bytes) -> float:
    """Return the least of some measurements, which other processes disturb."""
    measured = []
    for _ in range(3):
        begun = process_time()
        assert len(index.route([data])) == 4
        measured.append(process_time() - begun)
    return min(measured)


def test_equal_elements_of_an_array_cost_the_same_each() -> None:
    index = index_of(*({"fullDocument.a": {"$in": [5, 10 + n]}} for n in range(4)))
    few, many = (seconds(index, event(a=[5] * count)) for count in (FEW, MANY))
    assert many < 30 * few, "nine times as many"
