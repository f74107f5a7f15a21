"""Fields that a query leaves out or renames, as Debezium's options name them."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson import Int64

from spark_sink.errors import OptionError
from spark_sink.events.slices import fields_of
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.field_edits import FieldEdits
from tests.spark.field_names import doubled

ROUTER = "mongodb://127.0.0.1:27020"


def edits(**options: str) -> FieldEdits:
    names = {"exclude": "field.exclude.list", "renames": "field.renames"}
    given = {names[name]: text for name, text in options.items()}
    parsed = parse_options({"uri": ROUTER, **given})
    return FieldEdits([*parsed.excluded_fields, *parsed.renamed_fields])


def edited(event: dict[str, Any], **options: str) -> dict[str, Any]:
    whole = {"_id": {"_data": "82"}, "ns": {"db": "shop", "coll": "orders"}, **event}
    found = bson.decode(edits(**options).event(bson.encode(whole)))
    return {name: value for name, value in found.items() if name not in ("_id", "ns")}


DOCUMENT = {
    "_id": 1,
    "name": "a",
    "card": {"number": "4711", "owner": {"name": "b", "n": Int64(5)}},
    "items": [{"sku": "x", "price": 1.5}, 7, [{"price": 2}]],
}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exclude": "SHOP.Order*.name"}, {**DOCUMENT, "name": None}),
        ({"exclude": "*.orders.card.owner.name, sh*p.*.name"},
         {**DOCUMENT, "name": None, "card": {"number": "4711", "owner": {"n": 5}}}),
        ({"exclude": "shop.orders.items.price"},
         {**DOCUMENT, "items": [{"sku": "x"}, 7, [{}]]}),
        ({"exclude": "shop.order.name,sho.orders.name,shop.orders.name.first"}, DOCUMENT),
        ({"renames": "shop.orders.card.number:no,shop.orders.card.no:nr"},
         {**DOCUMENT, "card": {"nr": "4711", "owner": {"name": "b", "n": 5}}}),
        ({"renames": "shop.orders.card.owner:name", "exclude": "shop.orders.card.owner.n"},
         {**DOCUMENT, "card": {"number": "4711", "name": {"name": "b"}}}),
    ],
)  # fmt: skip
def test_documents(options: dict[str, str], expected: dict[str, Any]) -> None:
    left = {name: value for name, value in expected.items() if value is not None}
    found = edited(
        {"fullDocument": DOCUMENT, "fullDocumentBeforeChange": DOCUMENT, "documentKey": DOCUMENT},
        **options,
    )
    assert found == {
        "fullDocument": left,
        "fullDocumentBeforeChange": left,
        "documentKey": DOCUMENT,
    }


DESCRIPTION = {
    "updatedFields": {
        "card.owner": {"name": "b", "n": 1},
        "card.owner.name": "c",
        "items.0.price": 3,
        "items.1": {"price": 4, "sku": "y"},
        "cards": 1,
    },
    "removedFields": ["card.owner.name", "items.2.price", "other"],
    "truncatedArrays": [{"field": "card.owner.name", "newSize": 2}],
    "disambiguatedPaths": {"items.0.price": ["items", 0, "price"]},
}


def test_descriptions_of_updates_lose_a_field() -> None:
    exclude = "shop.orders.card.owner.name,shop.orders.items.price"
    assert edited({"updateDescription": DESCRIPTION}, exclude=exclude)["updateDescription"] == {
        "updatedFields": {"card.owner": {"n": 1}, "items.1": {"sku": "y"}, "cards": 1},
        "removedFields": ["other"],
        "truncatedArrays": [],
        "disambiguatedPaths": {},
    }


def test_descriptions_of_updates_have_a_fields_new_name() -> None:
    renames = "shop.orders.card.owner.name:title,shop.orders.items.price:cost"
    assert edited({"updateDescription": DESCRIPTION}, renames=renames)["updateDescription"] == {
        "updatedFields": {
            "card.owner": {"title": "b", "n": 1},
            "card.owner.title": "c",
            "items.0.cost": 3,
            "items.1": {"cost": 4, "sku": "y"},
            "cards": 1,
        },
        "removedFields": ["card.owner.title", "items.2.cost", "other"],
        "truncatedArrays": [{"field": "card.owner.title", "newSize": 2}],
        "disambiguatedPaths": {"items.0.cost": ["items", 0, "cost"]},
    }


@pytest.mark.parametrize(
    ("paths", "left"),
    [({"a.b": ["a.b"]}, True), ({}, False)],
    ids=["a name with a dot", "two names"],
)
def test_the_parts_of_a_path_decide(paths: dict[str, list[str]], left: bool) -> None:
    description = {
        "updatedFields": {"a.b": 1},
        "removedFields": [],
        "truncatedArrays": [],
        "disambiguatedPaths": paths,
    }
    found = edited({"updateDescription": description}, exclude="*.*.a.b")["updateDescription"]
    assert found == (description if left else {**description, "updatedFields": {}})


def test_names_that_occur_twice_stay() -> None:
    full = doubled(("a", 1), ("a", 2), ("n", 1))
    event = {"_id": 1, "ns": {"db": "shop", "coll": "orders"}, "fullDocument": full}
    changed = edits(exclude="*.*.n", renames="*.*.a:b").event(bson.encode(event))
    assert fields_of(changed)[b"fullDocument"].value == doubled(("b", 1), ("b", 2)).raw


def test_a_fragment_without_a_namespace_gets_the_edits_of_all_collections() -> None:
    event = bson.encode({"_id": {"_data": "82"}, "fullDocument": DOCUMENT, "splitEvent": {}})
    found = bson.decode(edits(exclude="shop.orders.name").event(event))
    assert "name" not in found["fullDocument"]


def test_an_event_without_such_fields_is_unchanged() -> None:
    event = bson.encode({"_id": 1, "ns": {"db": "shop", "coll": "orders"}, "fullDocument": {}})
    assert edits(exclude="shop.orders.name").event(event) is event


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("field.exclude.list", "shop.orders"),
        ("field.exclude.list", "shop.orders.a,"),
        ("field.renames", "shop.orders.a"),
        ("field.renames", "shop.orders.a:b.c"),
        ("field.renames", "shop.orders:b"),
    ],
)
def test_entries_without_a_field_are_refused(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}': must be database.collection.field"):
        parse_options({"uri": ROUTER, name: text})
