"""Updates and their oplog entries: the recorded forms, and the operators' rules."""

from typing import Any

import pytest
from bson import Int64, ObjectId

from embedded.storage.bson_values import copied, identical
from embedded.storage.updates import Update
from shard_client.errors import CommandError

ORDER = {"_id": 4, "n": 1, "tags": [0, 1, 2], "nested": {"a": 1, "b": [1, 2, 3]}}


def update(document: dict, specification: Any) -> Any:
    before = copied(document)
    updated = Update(specification, {}).apply(document)
    assert identical(document, before), "the document itself must not change"
    return updated


def diff(document: dict, specification: Any) -> Any:
    updated = update(document, specification)
    assert updated.o["$v"] == 2
    return updated.o["diff"]


@pytest.mark.parametrize(
    ("specification", "expected"),
    [
        ({"$set": {"n": -4, "nested.a": "x"}}, {"u": {"n": -4}, "snested": {"u": {"a": "x"}}}),
        (
            {"$unset": {"nested.b": 1}, "$inc": {"n": 5}},
            {"u": {"n": 6}, "snested": {"d": {"b": False}}},
        ),
        ({"$push": {"tags": {"$each": [7, 8]}}}, {"stags": {"a": True, "u3": 7, "u4": 8}}),
        ({"$push": {"tags": 7}}, {"stags": {"a": True, "u3": 7}}),
        (
            {"$push": {"tags": {"$each": [7], "$position": 0}}},
            {"u": {"tags": [7, 0, 1, 2]}},
        ),
        ({"$push": {"fresh": 1}}, {"i": {"fresh": [1]}}),
        ({"$set": {"v": 2, "a.b": 1}}, {"i": {"a": {"b": 1}, "v": 2}}),
        ({"$set": {"tags.1": 9}}, {"stags": {"a": True, "u1": 9}}),
        ({"$set": {"a.b": 1, "a.c": 2}}, {"i": {"a": {"b": 1, "c": 2}}}),
        ({"$pull": {"tags": {"$gte": 1}}}, {"u": {"tags": [0]}}),
        ({"$pop": {"tags": -1}}, {"u": {"tags": [1, 2]}}),
        ({"$addToSet": {"tags": {"$each": [2, 3]}}}, {"u": {"tags": [0, 1, 2, 3]}}),
        ({"$mul": {"n": 3}, "$min": {"missing": 1}}, {"u": {"n": 3}, "i": {"missing": 1}}),
        ([{"$set": {"tags": {"$slice": ["$tags", 1]}}}], {"u": {"tags": [0]}}),
        (
            [{"$unset": "nested"}, {"$set": {"new": "$n"}}],
            {"d": {"nested": False}, "i": {"new": 1}},
        ),
    ],
)
def test_the_diff_describes_the_update(specification: Any, expected: Any) -> None:
    found = diff(ORDER, specification)
    assert found == expected
    assert list(found) == list(expected)


def test_pushing_to_an_empty_array_logs_it_whole() -> None:
    assert diff({"_id": 1, "tags": []}, {"$push": {"tags": 7}}) == {"u": {"tags": [7]}}


def test_a_truncated_long_array_is_logged_by_its_length() -> None:
    long = {"_id": 1, "tags": list(range(50)), "keep": "x" * 50}
    found = diff(long, [{"$set": {"tags": {"$slice": ["$tags", 30]}}}])
    assert found == {"stags": {"a": True, "l": 30}}


def test_a_pipeline_that_changes_most_is_logged_as_a_replacement() -> None:
    updated = update(ORDER, [{"$replaceWith": {"x": 1}}])
    assert updated.o == {"_id": 4, "x": 1}


def test_a_replacement_keeps_the_id_in_front_and_is_logged_whole() -> None:
    updated = update(ORDER, {"b": 1, "a": 2})
    assert list(updated.document) == ["_id", "b", "a"]
    assert updated.o == updated.document


@pytest.mark.parametrize(
    "specification", [{"$set": {"n": 1}}, {"$unset": {"gone": 1}}, [{"$set": {"n": 1}}], ORDER]
)
def test_an_update_without_effect_logs_nothing(specification: Any) -> None:
    assert update(ORDER, specification).o is None


@pytest.mark.parametrize(
    ("before", "argument", "after"),
    [
        (1, 2, 3),
        (1, Int64(2), Int64(3)),
        (1, 0.5, 1.5),
        (2**31 - 1, 1, Int64(2**31)),
    ],
)
def test_inc_keeps_number_types(before: Any, argument: Any, after: Any) -> None:
    found = update({"_id": 1, "n": before}, {"$inc": {"n": argument}}).document["n"]
    assert identical(found, after)


def test_changing_only_the_type_is_a_change() -> None:
    assert diff({"_id": 1, "n": 1}, {"$set": {"n": Int64(1)}}) == {"u": {"n": Int64(1)}}


@pytest.mark.parametrize(
    ("specification", "code"),
    [
        ({"$set": {"a": 1}, "$inc": {"a.b": 1}}, 40),
        ({"$bogus": {"a": 1}}, 238),
        ({"$set": {"n": 1}, "plain": 1}, 9),
        ({"$set": {"_id": 9}}, 66),
        ({"_id": 9}, 66),
        ({"$set": {"n.deep": 1}}, 28),
        ({"$inc": {"tags": 1}}, 14),
        ({"$inc": {"n": "x"}}, 14),
        ({"$push": {"n": 1}}, 2),
        ({"$set": {"": 1}}, 56),
        ({"$set": {"tags.$.x": 1}}, 238),
        ([{"$match": {}}], 72),
    ],
)
def test_bad_updates_are_refused_with_mongodbs_codes(specification: Any, code: int) -> None:
    with pytest.raises(CommandError) as caught:
        update(ORDER, specification)
    assert caught.value.code == code


def test_upserts_start_from_the_filters_equalities() -> None:
    condition = {"_id": 5, "region": "a", "n": {"$gt": 3}, "deep.er": {"$eq": 1}}
    given = {"$set": {"up": 1}, "$setOnInsert": {"first": True}}
    document = Update(given, condition).upserted(ObjectId())
    assert document == {"_id": 5, "region": "a", "deep": {"er": 1}, "first": True, "up": 1}
    new_id = ObjectId()
    assert Update({"x": 1}, {"y": 2}).upserted(new_id) == {"_id": new_id, "x": 1}
