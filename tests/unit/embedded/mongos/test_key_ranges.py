"""Ranges of compound keys, cut off at a limit."""

from typing import Any

import pytest
from bson import MaxKey, MinKey
from embedded.mongos.key_ranges import KeyRange, key_ranges

from embedded.mongos.shard_key import ShardKey

KEY = ShardKey({"a": 1, "b": 1, "c": 1})
LOW, HIGH = MinKey(), MaxKey()


@pytest.mark.parametrize(
    ("filter_", "ranges"),
    [
        ({"a": 1, "b": 2, "c": 3}, [KeyRange((1, 2, 3), (1, 2, 3))]),
        ({"a": 1}, [KeyRange((1, LOW, LOW), (1, HIGH, HIGH))]),
        ({"a": 1, "b": {"$gt": 5}}, [KeyRange((1, 5, LOW), (1, HIGH, HIGH))]),
        ({"a": {"$lt": 5}, "b": 1}, [KeyRange((LOW, LOW, LOW), (5, HIGH, HIGH))]),
        ({"a": 1, "c": 3}, [KeyRange((1, LOW, LOW), (1, HIGH, HIGH))]),
        (
            {"a": {"$in": [1, 2]}, "b": 3},
            [KeyRange((1, 3, LOW), (1, 3, HIGH)), KeyRange((2, 3, LOW), (2, 3, HIGH))],
        ),
        ({"a": {"$gt": 1, "$lte": 9}}, [KeyRange((1, LOW, LOW), (9, HIGH, HIGH))]),
        ({"b": 1}, None),
        ({"a": {"$exists": True}}, None),
        ({"a": {"$in": list(range(40))}, "b": {"$in": list(range(40))}}, None),
    ],
)
def test_filters_give_key_ranges(filter_: dict[str, Any], ranges: list[KeyRange] | None) -> None:
    assert key_ranges(KEY, filter_) == ranges
