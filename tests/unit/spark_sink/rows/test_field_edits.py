"""Fields that a query leaves out, masks or renames, as its options name them."""

import hmac
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import Int64, ObjectId
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from spark_sink.errors import OptionError, StreamError
from spark_sink.events.apply_update import updated
from spark_sink.events.slices import fields_of
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.field_edits import FieldEdits
from tests.spark.field_names import doubled

ROUTER = "mongodb://127.0.0.1:27020"


def edits(**options: str) -> FieldEdits:
    names = {
        "exclude": "field.exclude.list",
        "renames": "field.renames",
        "masks": "field.masks",
        "salt": "field.masks.salt.file",
    }
    given = {names[name]: text for name, text in options.items()}
    return FieldEdits(parse_options({"uri": ROUTER, **given}).edits)


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"exclude": "shop.orders.card.owner.name,shop.orders.items.price"},
            {
                "updatedFields": {"card.owner": {"n": 1}, "items.1": {"sku": "y"}, "cards": 1},
                "removedFields": ["other"],
                "truncatedArrays": [],
                "disambiguatedPaths": {},
            },
        ),
        (
            {"renames": "shop.orders.card.owner.name:title,shop.orders.items.price:cost"},
            {
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
            },
        ),
    ],
    ids=["without a field", "with its new name"],
)
def test_descriptions_of_updates(options: dict[str, str], expected: dict[str, Any]) -> None:
    found = edited({"updateDescription": DESCRIPTION}, **options)["updateDescription"]
    assert found == expected


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


@pytest.fixture
def salt(tmp_path: Path) -> str:
    path = tmp_path / "salt"
    path.write_text("0123456789abcdef\n")
    return str(path)


def hashed(data: bytes) -> str:
    return hmac.new(b"0123456789abcdef", data, "sha256").hexdigest()


def test_masks_of_documents(salt: str) -> None:
    found = edited(
        {"fullDocument": DOCUMENT, "fullDocumentBeforeChange": {"name": None, "items": "é" * 9}},
        masks="shop.orders.name:hash, *.*.card:constant=x y, shop.*.items:truncate=3",
        renames="shop.orders.card.number:no",
        salt=salt,
    )
    assert found == {
        "fullDocument": {
            "_id": 1,
            "name": hashed(b"a"),
            "card": {"no": "x y", "owner": {"name": "x y", "n": "x y"}},
            "items": [{"sku": "x", "price": None}, None, [{"price": None}]],
        },
        "fullDocumentBeforeChange": {"name": None, "items": "ééé"},
    }
    ids = ObjectId(), 7
    [first, second] = edited({"fullDocument": {"a": ids}}, masks="*.*.a:hash", salt=salt)[
        "fullDocument"
    ]["a"]
    assert (first, second) == (hashed(str(ids[0]).encode()), hashed(b"\x10\x07\0\0\0"))


SECRET = "4711-0815"


@pytest.mark.parametrize(
    ("description", "masked"),
    [
        (
            {"updatedFields": {"card": {"number": SECRET, "n": 1}}},
            {"card": {"number": "x", "n": 1}},
        ),
        ({"updatedFields": {"card.number": SECRET}}, {"card.number": "x"}),
        ({"updatedFields": {"card.number.0": SECRET}}, {"card.number.0": "x"}),
        ({"updatedFields": {"card.number.a.b": [SECRET]}}, {"card.number.a.b": ["x"]}),
        ({"updatedFields": {"card.2.number": SECRET}}, {"card.2.number": "x"}),
        ({"updatedFields": {"card.2": {"number": [SECRET]}}}, {"card.2": {"number": ["x"]}}),
        ({"updatedFields": {"card": [[{"number": SECRET}]]}}, {"card": [[{"number": "x"}]]}),
        ({"updatedFields": {"p.0.q": SECRET}}, {"p.0.q": "x"}),  # 0 may be a name
        ({"updatedFields": {"others.01": 1}}, {"others.01": 1}),  # no index has such digits
        (
            {"updatedFields": {"p.0.q": SECRET}, "disambiguatedPaths": {"p.0.q": ["p", "0", "q"]}},
            {"p.0.q": "x"},
        ),
    ],
)
def test_masks_of_updates(description: dict[str, Any], masked: dict[str, Any]) -> None:
    rest = {"removedFields": ["card.number"], "truncatedArrays": [{"field": "card", "newSize": 1}]}
    found = edited(
        {"updateDescription": {**description, **rest}},
        masks="shop.orders.card.number:constant=x,shop.orders.p.0.q:constant=x",
    )["updateDescription"]
    assert found["updatedFields"] == masked
    assert {name: found[name] for name in rest} == rest
    assert SECRET not in str(found)


_NAMES = st.sampled_from(["a", "b", "0"])
_VALUES = st.recursive(
    st.sampled_from(["clear", "other", 5, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(
    document=st.dictionaries(_NAMES, _VALUES, min_size=1),
    path=st.lists(_NAMES | st.integers(0, 2), min_size=1, max_size=3),
    value=_VALUES,
    mask=st.sampled_from(["a", "a.b", "b.a.b", "a.0"]),
    rule=st.sampled_from(["truncate=2", "constant=x"]),
)
def test_a_masked_update_of_a_masked_document_is_the_masked_document_after_it(
    document: dict[str, Any], path: list[str | int], value: Any, mask: str, rule: str
) -> None:
    """The current table is the same from the update as from a snapshot of the document."""
    holder: Any = document
    for part in path[:-1]:  # parts that the document has, as the oplog names them
        known = range(len(holder)) if isinstance(holder, list) else holder
        if not isinstance(holder, list | dict) or part not in known:
            return
        holder = holder[part]
    if isinstance(holder, list) != isinstance(path[-1], int) or not isinstance(holder, list | dict):
        return
    dotted = ".".join(map(str, path))
    description = {"updatedFields": {dotted: value}, "disambiguatedPaths": {dotted: path}}
    masks = f"shop.orders.{mask}:{rule}"

    def masked(document: bytes) -> bytes:
        return fields_of(edits(masks=masks).event(event_of(fullDocument=document)))[
            b"fullDocument"
        ].value

    before, change = bson.encode(document), bson.encode(description)
    given = event_of(updateDescription=change)
    other = fields_of(edits(masks=masks).event(given))[b"updateDescription"].value
    assert updated(masked(before), other) == masked(updated(before, change))


def event_of(**documents: bytes) -> bytes:
    names = {"ns": {"db": "shop", "coll": "orders"}}
    return bson.encode({**names, **{n: RawBSONDocument(each) for n, each in documents.items()}})


@pytest.mark.parametrize(
    ("masks", "key", "refused"),
    [
        ("shop.orders.zone:constant=x", {"zone": 1, "_id": 1}, True),
        ("shop.orders.a:constant=x", {"a.b": 1, "_id": 1}, True),
        ("shop.orders.a.b:constant=x", {"a": {"b": 1}, "_id": 1}, True),
        ("shop.orders.a.c:constant=x", {"a.b": 1, "_id": 1}, False),
        ("shop.others.zone:constant=x", {"zone": 1, "_id": 1}, False),
    ],
)
def test_a_field_of_the_key_is_not_masked(masks: str, key: dict[str, Any], refused: bool) -> None:
    """The key is in each event, and in its token."""
    told = pytest.raises(StreamError, match="is a part of the key of the documents of")
    with told if refused else nullcontext():
        edited({"documentKey": key}, masks=masks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"field.masks": "shop.orders.a:hash"}, "a hash needs a salt: set field.masks.salt.file"),
        ({"field.masks": "shop.orders.a:md5"}, "with the rule hash, truncate=N or constant=TEXT"),
        ({"field.masks": "shop.orders.a:truncate=x"}, "with the rule hash, truncate=N"),
        ({"field.masks": "shop.orders._id.a:hash"}, "_id is in the key"),
        ({"field.masks": "shop.orders:hash"}, "must be database.collection.field"),
        ({"field.masks.salt.file": "/none"}, "cannot read /none"),
        ({"field.masks.salt.file": "short"}, "must have 16 bytes or more"),
        (
            {"field.masks": "shop.orders.a:constant=x", "pipeline": '[{"$set": {"b": "$ns"}}]'},
            "'pipeline': .set may copy a masked value",
        ),
    ],
)
def test_masks_that_would_hide_nothing_are_refused(
    options: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("salt\n")
    with pytest.raises(OptionError, match=message):
        parse_options({"uri": ROUTER, **options})


def test_a_salt_is_not_printed(salt: str) -> None:
    given = {"field.masks": "shop.orders.a:hash", "field.masks.salt.file": salt}
    parsed = parse_options({"uri": ROUTER, **given})
    assert "0123456789abcdef" not in f"{parsed} {parsed.edits}"


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
