"""Reading along paths: what a reader remembers of earlier documents changes nothing."""

from random import Random
from typing import Any

import bson
import pytest
from bson import Regex

from router.filters.fields import NOTHING, Path
from router.filters.paths import PathReader
from router.filters.values import STRING
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


@pytest.mark.parametrize("kinds", [3, 10, 300])
@pytest.mark.parametrize("seed", range(4))
def test_a_reader_finds_what_a_walk_finds(seed: int, kinds: int) -> None:
    random = Random(seed)
    chance = Chance(random, repeated=True)
    reader = PathReader(random.sample(PATHS, 3))
    events = [bson.encode(chance.event()) for _ in range(kinds)]
    for _ in range(300):
        event = random.choice(events)
        assert reader.read(event) == reader.walk(event)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: b".".join(path).decode())
def test_the_only_value_is_the_one_that_a_walk_finds(path: Path) -> None:
    random = Random(5)
    chance = Chance(random, repeated=True)
    reader = PathReader([path])
    events = [bson.encode(chance.event()) for _ in range(10)]
    for text in ("a", "bcd", ""):
        document: Any = text
        for name in reversed(path):
            document = {name.decode(): document}
        events.append(bson.encode({"_id": 1, **document}))
    values = []
    for _ in range(300):
        event = random.choice(events)
        reader.read(event)
        value = reader.value(event)
        if value is not None:
            values.append(value)
            ((kind, start, end),) = reader.walk(event)[0]
            assert value == (kind, event[start:end])
    assert {kind for kind, _ in values} >= {STRING}, "no value was read the fast way"


@pytest.mark.parametrize("paths", [[(b"a", b"t")], [(b"a", b"t"), (b"s",)], [(b"a", b"s", b"x")]])
def test_lengths_of_strings_and_documents_differ(paths: list[Path]) -> None:
    random = Random(1)
    reader = PathReader(paths)
    for _ in range(200):
        inner = {"s": "x" * random.randrange(9), "d": {"n": b"x" * random.randrange(9)}, "t": 5}
        outer = {"r": Regex("x" * random.randrange(9)), "a": inner, "s": "y" * random.randrange(9)}
        event = bson.encode(outer)
        assert reader.read(event) == reader.walk(event)


def test_a_layout_matches_no_other_field_of_the_same_size() -> None:
    reader = PathReader([(b"t",)])
    reader.read(bson.encode({"x": "abc", "y": 1, "t": 7}))
    for other in ({"x": "abc", "z": 1, "t": 7}, {"x": b"abc", "y": 1, "t": 7}, {"x": "abc"}):
        event = bson.encode(other)
        assert reader.read(event) == reader.walk(event)


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
