"""What filters cost is bounded by work: bytes compared and fields walked over, for one event."""

import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from router.filters import conditions, fields, index
from router.filters.fields import MOST_WORK, NESTED_UNIT_BYTES, UNIT_BYTES, Allowance, TooLargeError
from router.filters.stream_filter import compile_filter
from tests.unit.router.filters.made_filters import Document, event, index_of

MOST_TIMES = 4
"""How far beyond the work for an event the search for the guilty paths may go."""

NESTED = {f"{n:x}": None for n in range(9000)}
"""A document that may be compared."""

TEXT = "é" * (MOST_WORK // 20 * UNIT_BYTES) + "x"


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
    assert compared(monkeypatch, [match], event(**wide)) <= MOST_WORK * NESTED_UNIT_BYTES


def test_the_bytes_of_strings_are_bounded_for_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    # A string that is not valid UTF-8 matches no expression, so all expressions look at it.
    broken = event(a=[TEXT] * 4).replace(b"x\0", b"\xff\0")
    assert struct.unpack_from("<i", broken)[0] == len(broken)
    match = {"$nor": [{"fullDocument.a": {"$regex": "^"}}] * 20}
    assert compared(monkeypatch, [match], broken) <= MOST_WORK * UNIT_BYTES


@pytest.mark.parametrize(
    ("matches", "data"),
    [
        (
            [{f"fullDocument.a.x{n}": 1} for n in range(1000)],
            event(a=[{}] * (MOST_WORK // 500)),
        ),
        (
            [{f"fullDocument.a.x.y{n}": 1} for n in range(1000)],
            event(a=[{"x": 1}] * (MOST_WORK // 500)),
        ),
        (
            [{"fullDocument.a": {"$in": [*range(999), n]}} for n in range(1000, 1100)],
            event(a=list(range(1000))),
        ),
        (
            [{"fullDocument.a": {"$gt": "x" * 50_000 + "z"}} for _ in range(100)],
            event(a=["x" * 50_000] * 100),
        ),
        (
            [{"fullDocument.a": {"$ne": "x" * 50_000}} for _ in range(100)],
            event(a=["y" * 50_000] * 100),
        ),
        (
            [{"$nor": [{"fullDocument.a.b": {"$gt": n}} for n in range(99)]} for _ in range(400)],
            event(a=[1]),
        ),
        ([{"fullDocument.a": "x"}], event(a="x" * (MOST_WORK + 1) * UNIT_BYTES)),
    ],
    ids=[
        "missing in documents",
        "missing in scalars",
        "filters found many times",
        "long operands of an order",
        "long operands of equality",
        "conditions on nothing",
        "a long string that is hashed",
    ],
)
def test_work_of_every_kind_counts(matches: Sequence[Document], data: bytes) -> None:
    filters = index_of(*matches)
    for _ in range(40):  # by walks and by layouts
        with pytest.raises(TooLargeError) as raised:
            filters.route([data])
        assert raised.value.owners == set(range(len(matches)))


def test_owners_of_paths_that_are_not_measured_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    walked = 0
    real = fields.value_end

    def count(data: bytes, kind: int, start: int) -> int:
        nonlocal walked
        walked += 1
        return real(data, kind, start)

    filters = index_of(*({f"fullDocument.a.x{n}": {"$ne": 1}} for n in range(3000)))
    monkeypatch.setattr(fields, "value_end", count)
    with pytest.raises(TooLargeError) as raised:
        filters.route([event(a=[{"y": 1}] * 1000)])
    assert raised.value.owners == set(range(3000))
    assert walked <= MOST_TIMES * MOST_WORK


def test_all_projections_of_an_event_share_an_allowance() -> None:
    large = event(a="x" * 1_000_000)
    copying = compile_filter([{"$unset": "fullDocument.tenant"}])
    allowance = Allowance()
    for _ in range(MOST_WORK * UNIT_BYTES // len(large) // 3):
        assert copying.project(large, allowance)
    with pytest.raises(TooLargeError):
        list(iter(partial(copying.project, large, allowance), b""))
    assert copying.project(large)


FEW, MANY = MOST_WORK // 10, MOST_WORK * 9 // 10
