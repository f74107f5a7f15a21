"""Aggregation expressions, and the stages that replace or count documents."""

from typing import Any

import pytest
from bson import Int64

from embedded.storage.aggregation import aggregate
from shard_client.errors import CommandError

DOCUMENT = {"_id": 1, "a": 2, "b": {"c": 3}, "list": [1, 2], "none": None, "$odd": 7}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"$in": ["$a", "$list"]}, True),
        ({"$in": ["$b.c", "$list"]}, False),
        ({"$in": ["$missing", "$list"]}, False),
        ({"$or": ["$none", {"$gt": ["$a", 5]}]}, False),
        ({"$or": ["$none", "$a"]}, True),
        ({"$and": ["$a", "$missing"]}, False),
        ({"$not": ["$missing"]}, True),
        ({"$not": ["$a"]}, False),
        ({"$ifNull": ["$missing", "$none", "$a"]}, 2),
        ({"$ifNull": ["$missing", "$none"]}, None),
        ({"$bsonSize": "$b"}, 12),
        ({"$bsonSize": "$missing"}, None),
        ({"$lte": [{"$bsonSize": "$none"}, 5]}, True),
    ],
)
def test_expressions_are_evaluated(expression: Any, expected: Any) -> None:
    [found] = aggregate([DOCUMENT], [{"$project": {"_id": 0, "x": expression}}])
    assert found == {"x": expected}


def test_replace_root_takes_a_document() -> None:
    assert aggregate([DOCUMENT], [{"$replaceRoot": {"newRoot": "$b"}}]) == [{"c": 3}]
    with pytest.raises(CommandError) as caught:
        aggregate([DOCUMENT], [{"$replaceRoot": {}}])
    assert caught.value.code == 40231


def test_count_gives_no_document_for_no_input() -> None:
    assert aggregate([{"_id": 1}, {"_id": 2}], [{"$count": "n"}]) == [{"n": Int64(2)}]
    assert aggregate([], [{"$count": "n"}]) == []
