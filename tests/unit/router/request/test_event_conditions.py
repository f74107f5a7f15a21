"""Conditions that depend on an event alone, the fields that they read, and their conjuncts."""

from typing import Any

import pytest
from bson import Regex

from router.request.event_conditions import (
    Reads,
    conjunction,
    conjuncts,
    fields_removed,
    reads_of,
)


@pytest.mark.parametrize(
    ("condition", "fields"),
    [
        ({}, ""),
        ({"$comment": "mine"}, ""),
        ({"a": 1, "b.c": {"d": 1}}, "a b"),
        ({"a": {"$gte": 1, "$lt": 5}, "b": {"$not": Regex("^x")}}, "a b"),
        ({"a": {"$bitsAllSet": [1]}, "b": {"$in": [1, Regex("x")]}}, "a b"),
        ({"a": {"$elemMatch": {"$gt": 1}}, "b": {"$elemMatch": {"c": {"$gt": 1}}}}, "a b"),
        ({"a": {"$elemMatch": {"$or": [{"b": 1}, {"c": {"$ne": 1}}]}}}, "a"),
        ({"a": {"$all": [1, {"b": 2}, {"$elemMatch": {"c": 3}}]}}, "a"),
        ({"$or": [{"a": 1}, {"$nor": [{"b": 1}]}], "$and": [{"c": 1}]}, "a b c"),
        ({"$expr": {"$eq": ["$a.b", "b"]}}, "a"),
        ({"$expr": "$a"}, "a"),
        ({"$expr": {"$eq": [{"$literal": "$a"}, {"x": "$b"}]}}, "b"),
        ({"$expr": {"$cond": {"if": "$a", "then": ["$b"], "else": "$c.d"}}}, "a b c"),
    ],
    ids=str,
)
def test_the_fields_that_a_condition_reads(condition: dict[str, Any], fields: str):
    reads = reads_of(condition)
    assert reads is not None
    assert reads.fields == set(fields.split())
    assert not reads.may_fail


@pytest.mark.parametrize(
    "condition",
    [
        {"$expr": {"$in": ["x", "$a"]}},
        {"$expr": {"$eq": [{"$mod": [{"$toHashedIndexKey": "$a"}, 4]}, 0]}},
        {"$or": [{"a": 1}, {"$expr": {"$regexMatch": {"input": "$a", "regex": "x"}}}]},
        {"$expr": {"$switch": {"branches": [{"case": "$a", "then": True}]}}},
    ],
    ids=str,
)
def test_expressions_that_fail_for_some_values(condition: dict[str, Any]):
    assert reads_of(condition) == Reads({"a"}, may_fail=True)


@pytest.mark.parametrize(
    "condition",
    [
        {"$sampleRate": 0.5},
        {"$where": "true"},
        {"$jsonSchema": {}},
        {"a": {"$near": [1, 2]}},
        {"a": {"$not": {"$near": [1, 2]}}},
        {"a": {"$elemMatch": {"b": {"$near": [1, 2]}}}},
        {"a": {"$elemMatch": {"b": 1, "$sampleRate": 0.5}}},
        {"a": {"$elemMatch": 1}},
        {"a": {"$all": [{"$elemMatch": {"b": 1, "$sampleRate": 0.5}}]}},
        {"a": {"$all": 1}},
        {"a": {"b": 1, "$gt": 2}},
        {"$or": []},
        {"$and": [1]},
        {"$nor": {"a": 1}},
        {"$or": [{"a": 1}, {"$sampleRate": 0.5}]},
        {"$expr": {"$lt": [{"$rand": {}}, 0.5]}},
        {"$expr": {"$lt": ["$a", "$$NOW"]}},
        {"$expr": {"$eq": ["$a", "$$of_let"]}},
        {"$expr": {"$eq": ["$$ROOT.a", 1]}},
        {"$expr": {"$getField": "a"}},
        {"$expr": {"$cond": {"if": {"$rand": {}}, "then": 1, "else": 0}}},
    ],
    ids=str,
)
def test_conditions_that_may_depend_on_something_else(condition: dict[str, Any]):
    assert reads_of(condition) is None


@pytest.mark.parametrize(
    ("stage", "fields"),
    [
        ({"$unset": "a.b"}, "a"),
        ({"$unset": ["a", "b.c"]}, "a b"),
        ({"$project": {"a.b": 0, "c": False}}, "a c"),
        ({"$unset": []}, None),
        ({"$unset": ["a", 1]}, None),
        ({"$project": {"a": 0, "b": 1}}, None),
        ({"$project": {"a": 0, "b": "$c"}}, None),
        ({"$project": {"a": {"b": 0}}}, None),
        ({"$match": {"a": 0}}, None),
    ],
    ids=str,
)
def test_the_fields_that_a_stage_removes(stage: dict[str, Any], fields: str | None):
    assert fields_removed(stage) == (None if fields is None else set(fields.split()))


def test_the_conjuncts_of_a_condition():
    condition = {
        "a": {"$gt": 1, "$lt": 3},
        "$and": [{"b": 1, "c": 2}, {"$or": [{"d": 1}, {"e": 2}]}],
        "$nor": [{"f": 1}, {"no": 1}, {"g": 1}],
    }
    parts = list(conjuncts(condition, lambda each: "no" not in each))
    assert parts == [
        {"a": {"$gt": 1, "$lt": 3}},
        {"b": 1},
        {"c": 2},
        {"$or": [{"d": 1}, {"e": 2}]},
        {"$nor": [{"f": 1}, {"g": 1}]},
        {"$nor": [{"no": 1}]},
    ]
    assert conjunction(parts[:1]) == parts[0]
    assert conjunction(parts[1:3]) == {"$and": [{"b": 1}, {"c": 2}]}
