"""Updates from their descriptions, and what ddl_events do to rows."""

from __future__ import annotations

import pytest

from spark_sink.tables.ddl_events import DdlEvent, namespace_after
from spark_sink.tables.update_description import apply_update


@pytest.mark.parametrize(
    ("before", "description", "after"),
    [
        ({"a": 1}, {"updatedFields": {"b": 2}}, {"a": 1, "b": 2}),
        ({"a": {"b": 1}}, {"updatedFields": {"a.c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"removedFields": ["a", "b.c"]}, {"b": {"d": 2}}),
        ({}, {"removedFields": ["a.b"]}, {}),
        ({"a": [1, 2, 3]}, {"updatedFields": {"a.1": 9}}, {"a": [1, 9, 3]}),
        ({"a": {"1": 2}}, {"updatedFields": {"a.1": 9}}, {"a": {"1": 9}}),
        ({"a": [{"b": 1}]}, {"updatedFields": {"a.0.b": 2, "a.1": 5}}, {"a": [{"b": 2}, 5]}),
        ({"a": [1]}, {"updatedFields": {"a.3": 4}}, {"a": [1, None, None, 4]}),
        (
            {"a": [1, 2, 3, 4]},
            {"truncatedArrays": [{"field": "a", "newSize": 2}], "updatedFields": {"a.1": 7}},
            {"a": [1, 7]},
        ),
        (
            {"a": [{"b": [1, 2]}]},
            {"truncatedArrays": [{"field": "a.0.b", "newSize": 1}]},
            {"a": [{"b": [1]}]},
        ),
        (
            {"a.b": 1, "a": {"b": 1}},
            {"updatedFields": {"a.b": 2}, "disambiguatedPaths": {"a.b": ["a.b"]}},
            {"a.b": 2, "a": {"b": 1}},
        ),
        (
            {"a": [0, 0]},
            {"updatedFields": {"a.1": 2}, "disambiguatedPaths": {"a.1": ["a", 1]}},
            {"a": [0, 2]},
        ),
        # Names with dots, as MongoDB 6.0 describes them.
        ({"a.b": 1}, {"updatedFields": {"a.b": 2}}, {"a.b": 2}),
        ({"a": 1}, {"updatedFields": {"a.b": 2}}, {"a": 1, "a.b": 2}),
        ({"a.b": 1, "a": 3}, {"removedFields": ["a.b"]}, {"a": 3}),
        ({"a.b": {"c.d": 1}}, {"updatedFields": {"a.b.c.d": 2}}, {"a.b": {"c.d": 2}}),
        ({"a": {"b.c": {}}}, {"updatedFields": {"a.b.c.d": 2}}, {"a": {"b.c": {"d": 2}}}),
        (
            {"a": [{"b.c": [1, 2]}]},
            {"truncatedArrays": [{"field": "a.0.b.c", "newSize": 1}]},
            {"a": [{"b.c": [1]}]},
        ),
    ],
)
def test_an_update_matches_its_description(before, description, after):
    assert apply_update(before, description) == after


@pytest.mark.parametrize(
    ("before", "path", "message"),
    [
        ({"a": [5]}, "a.0.b", "no fields at the parent of a.0.b"),
        ({"a": []}, "a.0.b", "no fields at the parent of a.0.b"),
        ({"a": {"c": 1}, "a.b": 1}, "a.b", "the path a.b fits two fields"),
        ({"a": {}, "a.b": {}}, "a.b.c", "the path a.b.c fits two fields"),
    ],
)
def test_a_path_that_does_not_fit_the_document_is_refused(before, path, message):
    with pytest.raises(ValueError, match=message):
        apply_update(before, {"updatedFields": {path: 1}})


RENAME = DdlEvent("20", "rename", "db", "a", "db", "b")
DROP = DdlEvent("30", "drop", "db", "b")
DROP_ALL = DdlEvent("40", "dropDatabase", "db")
END = DdlEvent("50", "snapshotEnd")


@pytest.mark.parametrize(
    ("token", "collection", "ddl_events", "place"),
    [
        ("10", "a", [RENAME], ("db", "b")),
        ("20", "a", [RENAME], ("db", "a")),
        ("25", "a", [RENAME], ("db", "a")),
        ("10", "b", [RENAME], None),
        ("25", "b", [RENAME], ("db", "b")),
        ("10", "a", [RENAME, DROP], None),
        ("25", "b", [RENAME, DROP], None),
        ("35", "b", [RENAME, DROP], ("db", "b")),
        ("35", "c", [DROP, DROP_ALL], None),
        ("45", "c", [DROP_ALL], ("db", "c")),
        ("45", "c", [DROP_ALL, END], None),
        ("50", "c", [DROP_ALL, END], ("db", "c")),
    ],
)
def test_rows_from_before_a_ddl_event_follow_it(token, collection, ddl_events, place):
    assert namespace_after(token, "db", collection, ddl_events) == place
