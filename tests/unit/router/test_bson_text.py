"""Values in messages: never much of them."""

from typing import Any

import pytest

from router.bson_text import LONGEST, render


@pytest.mark.parametrize(
    "value",
    [
        "x" * LONGEST * 2,
        b"x" * LONGEST * 2,
        {"x" * LONGEST * 2: 1},
        list(range(LONGEST)),
        {str(number): {"a": [number]} for number in range(LONGEST)},
    ],
)
def test_large_values_are_cut(value: Any) -> None:
    text = render(value)
    assert text.endswith("...")
    assert len(text) <= LONGEST + 3


def test_what_is_cut_is_not_rendered() -> None:
    class Counted(list[int]):
        taken = 0

        def __iter__(self) -> Any:
            for each in super().__iter__():
                Counted.taken += 1
                yield each

    render(Counted(range(1_000_000)))
    assert Counted.taken < LONGEST
