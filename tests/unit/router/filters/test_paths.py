"""Reading along paths: what a reader remembers of earlier documents changes nothing."""

from random import Random

import bson
import pytest

from router.filters.paths import NOTHING, PathReader
from tests.filters.chance import Chance

PATHS = [
    (b"operationType",),
    (b"ns", b"db"),
    (b"fullDocument",),
    (b"fullDocument", b"a"),
    (b"fullDocument", b"a", b"b"),
    (b"documentKey", b"c"),
    (b"updateDescription", b"updatedFields", b"b"),
]


@pytest.mark.parametrize("seed", range(4))
def test_a_used_reader_reads_what_a_new_one_reads(seed: int) -> None:
    random = Random(seed)
    chance = Chance(random, repeated=True)
    paths = random.sample(PATHS, 3)
    used = PathReader(paths)
    for _ in range(300):
        event = bson.encode(chance.event())
        assert used.read(event) == PathReader(paths).read(event)


def test_a_document_that_leaves_the_layout_is_read_to_its_end() -> None:
    reader = PathReader([(b"a", b"b"), (b"c",)])
    usual = {"x": 1, "a": {"y": 1, "b": 2}, "c": 3}
    assert [len(found) for found in reader.read(bson.encode(usual))] == [1, 1]
    for other in (
        {"x": 1.5, "a": {"y": 1, "b": 2}, "c": 3},
        {"x": 1, "a": {"b": 2, "y": 1}, "c": 3},
        {"x": 1, "c": 3, "a": {"y": 1, "b": 2}},
        {"x": 1, "a": {"y": 1, "b": 2}, "d": 0, "c": 3},
        {"a": [{"b": 2}], "x": 1, "c": 3},
    ):
        event = bson.encode(other)
        (inner,), (outer,) = reader.read(event)
        assert (event[inner[1]], event[outer[1]]) == (2, 3)
    assert reader.read(bson.encode({"x": 1, "a": {"y": 1}})) == [[NOTHING], [NOTHING]]
