"""Projections that the embedded servers refuse, with the codes of a real mongod."""

from typing import Any

import pytest

from embedded.errors import CommandError
from embedded.storage.projection import project


@pytest.mark.parametrize(
    ("spec", "code", "message"),
    [
        ({"a": 1, "b": 0}, 31254, "exclusion on field b in inclusion"),
        ({"a": 0, "b": 1, "c": 0}, 31253, "inclusion on field b in exclusion"),
        ({"a": 1, "b": {"c": 0}}, 31254, "exclusion on field b.c in inclusion"),
        ({"a.b": 1, "a": 1}, 31250, "Path collision at a"),
        ({}, 51272, "at least one field"),
        (["a"], 15969, "must be an object"),
    ],
)
def test_a_projection_is_refused_with_its_code(spec: Any, code: int, message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        project(spec)
    assert refused.value.code == code


@pytest.mark.parametrize("spec", [{"_id": 0, "a": 1}, {"_id": 1, "a": 1}])
def test_an_id_may_be_left_out_of_an_inclusion(spec: dict[str, int]) -> None:
    kept = {"_id": 5} if spec["_id"] else {}
    assert project(spec)({"_id": 5, "a": 1, "b": 2}) == {**kept, "a": 1}
