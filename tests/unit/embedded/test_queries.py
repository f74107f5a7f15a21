"""Filters, sorting, projections and pipelines, over all of BSON's types."""

from typing import Any

import pytest
from bson import Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.binary import Binary
from hypothesis import given
from hypothesis import strategies as st

from embedded.storage.aggregation import aggregate
from embedded.storage.bson_values import id_key, without_dbrefs
from embedded.storage.ordering import sort_key
from embedded.storage.projection import project
from embedded.storage.queries import matches, sort_documents
from shard_client.errors import CommandError


@pytest.mark.parametrize(
    ("condition", "document", "expected"),
    [
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": [3, 1]}, True),
        ({"a": None}, {}, True),
        ({"a": {"$gt": Timestamp(1, 1)}}, {"a": Timestamp(1, 2)}, True),
        ({"a": {"$gt": 1}}, {"a": Timestamp(1, 2)}, False),
        ({"a": {"$lte": Decimal128("1.5")}}, {"a": 1}, True),
        ({"a": {"$gte": 2, "$lt": 4}}, {"a": 3}, True),
        ({"a": {"$in": [1, Regex("^x")]}}, {"a": "xy"}, True),
        ({"a": Regex("^X", "i")}, {"a": "xy"}, True),
        ({"a": {"$nin": [1]}}, {"a": [1, 2]}, False),
        ({"a": {"$ne": 1}}, {}, True),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}}, True),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2, "b": 1}}, False),
        ({"a.b": 2}, {"a": [{"b": 1}, {"b": 2}]}, True),
        ({"a": {"$elemMatch": {"b": 2, "c": {"$gt": 1}}}}, {"a": [{"b": 2, "c": 2}]}, True),
        ({"a": {"$elemMatch": {"$gt": 1, "$lt": 3}}}, {"a": [0, 2]}, True),
        ({"a": {"$not": {"$gt": 1}}}, {"a": 1}, True),
        ({"a": {"$type": "long"}}, {"a": Int64(1)}, True),
        ({"a": {"$type": ["string", 18]}}, {"a": 1}, False),
        ({"a": {"$mod": [4, 1]}}, {"a": 5}, True),
        ({"a": {"$size": 2}}, {"a": [1, 2]}, True),
        ({"a": {"$exists": False}}, {"b": 1}, True),
        ({"$or": [{"a": 1}, {"b": 2}]}, {"b": 2}, True),
        ({"$and": [{"a": 1}, {"b": 2}]}, {"b": 2}, False),
        ({"$expr": {"$gt": ["$a", "$b"]}}, {"a": 2, "b": 1}, True),
        ({"id": Binary(b"0123456789abcdef", 4)}, {"id": Binary(b"0123456789abcdef", 4)}, True),
    ],
)
def test_filters_match_as_on_mongod(condition: Any, document: Any, expected: bool) -> None:
    assert matches(condition, document) is expected


@pytest.mark.parametrize(
    "condition",
    [{"a": {"$bogus": 1}}, {"$bogus": 1}, {"$or": []}, {"a": {"$in": 1}}, {"a": {"$type": "x"}}],
)
def test_bad_filters_are_refused(condition: Any) -> None:
    with pytest.raises(CommandError) as caught:
        matches(condition, {"a": 1})
    assert caught.value.code == 2


def test_all_types_sort_in_mongodbs_order() -> None:
    in_order = [
        MinKey(), None, float("nan"), -1.5, 0, Int64(7), Decimal128("7.5"), "", "a", {}, {"a": 1},
        [], [1], b"x", Binary(b"\0" * 16, 4), ObjectId("0" * 24), False, True, Timestamp(1, 1),
        Regex("a"), MaxKey(),
    ]  # fmt: skip
    keys = [sort_key(value) for value in in_order]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_arrays_sort_by_their_extreme_element() -> None:
    found = [{"_id": 1, "a": [5, 1]}, {"_id": 2, "a": 3}, {"_id": 3}, {"_id": 4, "a": []}]
    assert [d["_id"] for d in sort_documents(found, {"a": 1})] == [4, 3, 1, 2]
    assert [d["_id"] for d in sort_documents(found, {"a": -1})] == [1, 2, 3, 4]


numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, width=32)


@given(left=numbers, right=numbers)
def test_keys_of_equal_numbers_are_equal(left: Any, right: Any) -> None:
    assert (id_key(left) == id_key(right)) == (left == right)
    assert id_key(left) == id_key(Int64(left) if isinstance(left, int) else left)


def test_keys_distinguish_types() -> None:
    assert len({id_key(value) for value in (1, True, "1", b"1", {"a": 1}, None)}) == 6


def test_dbrefs_are_documents() -> None:
    from bson import DBRef

    found = without_dbrefs({"a": [DBRef("c", 1, "db", x=2)]})
    assert found == {"a": [{"$ref": "c", "$id": 1, "$db": "db", "x": 2}]}
    assert type(found["a"][0]) is dict


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"a": 1}, {"_id": 1, "a": 2}),
        ({"a": 1, "_id": 0}, {"a": 2}),
        ({"a": 0}, {"_id": 1, "b": {"c": 3, "d": 4}}),
        ({"b.c": 1}, {"_id": 1, "b": {"c": 3}}),
        ({"x": {"$add": ["$a", 1]}}, {"_id": 1, "x": 3}),
    ],
)
def test_projections_select_and_compute_fields(fields: Any, expected: Any) -> None:
    assert project(fields)({"_id": 1, "a": 2, "b": {"c": 3, "d": 4}}) == expected


def test_pipelines_do_not_change_their_input() -> None:
    source = [{"_id": 1, "a": {"b": 1}}, {"_id": 2, "a": {"b": 2}}]
    found = aggregate(
        source,
        [
            {"$match": {"a.b": {"$gte": 1}}},
            {"$set": {"a.b": {"$add": ["$a.b", 1]}, "gone": "$$REMOVE"}},
            {"$sort": {"_id": -1}},
            {"$project": {"a": 1}},
        ],
    )
    assert found == [{"_id": 2, "a": {"b": 3}}, {"_id": 1, "a": {"b": 2}}]
    assert source == [{"_id": 1, "a": {"b": 1}}, {"_id": 2, "a": {"b": 2}}]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ({"$set": {"arr.x": 1}}, {"_id": 1, "arr": [{"k": 1, "x": 1}, {"k": 2, "x": 1}], "n": 5}),
        ({"$replaceWith": {"$mergeObjects": [{"d": 0}, {"n": "$n"}]}}, {"d": 0, "n": 5}),
        ({"$project": {"n": 1, "arr.k": 1, "_id": 0}}, {"arr": [{"k": 1}, {"k": 2}], "n": 5}),
        (
            {"$set": {"n": {"$cond": [{"$gt": ["$n", 9]}, "$n", "$$REMOVE"]}}},
            {"_id": 1, "arr": [{"k": 1}, {"k": 2}]},
        ),
        ({"$unset": ["arr.k", "n"]}, {"_id": 1, "arr": [{}, {}]}),
    ],
)
def test_stages_transform_a_copy_of_the_document(stage: Any, expected: Any) -> None:
    source = {"_id": 1, "arr": [{"k": 1}, {"k": 2}], "n": 5}
    [found] = aggregate([source], [stage])
    assert found == expected
    assert source == {"_id": 1, "arr": [{"k": 1}, {"k": 2}], "n": 5}


def test_sort_by_count() -> None:
    source = [{"_id": 1, "a": "x"}, {"_id": 2, "a": "y"}, {"_id": 3, "a": "y"}]
    found = aggregate(source, [{"$sortByCount": "$a"}])
    assert found == [{"_id": "y", "count": 2}, {"_id": "x", "count": 1}]


@pytest.mark.parametrize(
    ("stage", "code"),
    [({"$bogus": 1}, 40324), ({"a": 1, "b": 1}, 40323), ({"$unionWith": "o"}, 238)],
)
def test_unknown_stages_are_refused(stage: Any, code: int) -> None:
    with pytest.raises(CommandError) as caught:
        aggregate([], [stage])
    assert caught.value.code == code
