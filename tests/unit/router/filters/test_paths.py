"""Reading along paths: what a reader remembers of earlier documents changes nothing."""

from collections.abc import Iterator
from random import Random
from typing import Any

import bson
import pytest

from router.filters.fields import Path
from router.filters.paths import PathReader
from tests.filters.chance import Chance


def paths_into(value: Any, above: Path = ()) -> Iterator[Path]:
    """Yield the paths into a document, and paths to names that it lacks and below its values."""
    if isinstance(value, dict):
        for name in (*value, "d"):
            yield (*above, name.encode())
            yield (*above, name.encode(), b"x")
            yield from paths_into(value.get(name), (*above, name.encode()))


@pytest.mark.parametrize("seed", range(300))
def test_a_reader_finds_what_a_walk_finds(seed: int) -> None:
    random = Random(seed)
    events = Chance(random, repeated=True).events(random.choice((3, 10, 40)))
    known = sorted({path for each in events for path in paths_into(each)})
    reader = PathReader(random.sample(known, min(len(known), random.choice((1, 1, 1, 2, 4)))))
    raw = [bson.encode(each) for each in events]
    for _ in range(60):
        event = random.choice(raw)
        found = reader.walk(event)
        assert reader.read(event) == found
        if len(reader.paths) == 1 and (value := reader.value(event)) is not None:
            ((kind, start, end),) = found[0]
            assert value == (kind, event[start:end])
