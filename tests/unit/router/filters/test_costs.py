"""What filters cost is bounded by work: bytes compared and fields walked over, for one event."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from router.filters import conditions, index, values
from router.filters.bounds import MOST_COMPARED, MOST_FIELDS, TooLargeError
from tests.unit.router.filters.test_bounds import Document, event, index_of

MOST_TIMES = 8
"""How far beyond a bound for one value the work for a whole event may go."""

NESTED = {f"{n:x}": None for n in range(9000)}
"""A document of less than MOST_COMPARED bytes."""

TEXT = "é" * (MOST_COMPARED // 2 - 100) + "x"


def compared(
    monkeypatch: pytest.MonkeyPatch, matches: Sequence[Document], data: bytes, *modules: Any
) -> int:
    """Route an event and return the bytes of documents and strings that were looked at."""
    total = 0

    def counted(where: Any, name: str, place: int) -> None:
        real = getattr(where, name)

        def count(*arguments: Any) -> Any:
            nonlocal total
            total += arguments[place + 1] - arguments[place]
            return real(*arguments)

        monkeypatch.setattr(where, name, count)

    counted(conditions, "key", 2)
    counted(index, "key", 2)
    counted(conditions, "_is_utf8", 1)
    with suppress(TooLargeError):
        index_of(*matches).route([data])
    return total


@pytest.mark.parametrize(
    ("match", "wide"),
    [
        ({"fullDocument.a.b": {"$ne": {"x": 1}}}, {"a": [{"b": NESTED}] * 100}),
        (
            {"$or": [{f"fullDocument.p{n}": {"x": 1}} for n in range(100)]},
            {f"p{n}": NESTED for n in range(100)},
        ),
    ],
    ids=["documents below an array", "documents at many paths"],
)
def test_the_bytes_compared_are_bounded_for_an_event(
    match: Document, wide: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared(monkeypatch, [match], event(**wide)) <= MOST_TIMES * MOST_COMPARED


def test_the_bytes_of_strings_are_bounded_for_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    # A string that is not valid UTF-8 matches no expression, so all expressions look at it.
    broken = event(a=[TEXT] * 20).replace(b"x\0", b"\xff\0")
    assert struct.unpack_from("<i", broken)[0] == len(broken)
    match = {"$nor": [{"fullDocument.a": {"$regex": "^"}}] * 20}
    assert compared(monkeypatch, [match], broken) <= MOST_TIMES * MOST_COMPARED


def test_the_search_for_the_guilty_path_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No path is too large alone, and each is walked once more to find that out."""
    walked = 0
    real = values.value_end

    def count(data: bytes, kind: int, start: int) -> int:
        nonlocal walked
        walked += 1
        return real(data, kind, start)

    many = [0] * (MOST_FIELDS * 3 // 4)
    paths = [f"fullDocument.{name}.x{n}" for name in "ab" for n in range(20)]
    filters = index_of({"$nor": [{path: 1} for path in paths]})
    monkeypatch.setattr("router.filters.fields.value_end", count)
    with pytest.raises(TooLargeError):
        filters.route([event(a=many, b=many)])
    assert walked <= MOST_TIMES * MOST_FIELDS
