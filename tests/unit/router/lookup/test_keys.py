"""Matching the documents of one reply to the keys that it was requested for."""

from typing import Any

import bson
from bson import Int64, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from router.lookup.keys import DocumentKey, assign, filter_for_all, requests_of
from tests.unit.shard_client.bson_values import encoded

Document = dict[str, Any]


def raw(*documents: Document) -> list[bytes]:
    return [encoded(document) for document in documents]


def keyed(*documents: Document) -> list[DocumentKey]:
    return [DocumentKey.of(each) for each in raw(*documents)]


def decoded(keys: list[DocumentKey]) -> list[Document]:
    return [bson.decode(key.raw) for key in keys]


def matched(keys: list[Document], documents: list[Document]) -> tuple[list[Any], ...]:
    """Return found documents, absent keys, keys to request alone, and keys to request again."""
    answer = assign(keyed(*keys), raw(*documents))
    found = [bson.decode(document) for document in answer.found.values()]
    return found, decoded(answer.absent), decoded(answer.alone), decoded(answer.again)


def test_the_filter_uses_the_id_and_the_first_shard_key_field():
    keys = keyed({"_id": 1}, {"_id": "x"}, {"_id": 1.0})
    assert bson.decode(filter_for_all(keys)) == {"_id": {"$in": [1, "x", 1.0]}}
    keys = keyed({"k": 7, "l": 1, "_id": 1}, {"k": 7, "l": 2, "_id": 2})
    assert bson.decode(filter_for_all(keys)) == {"k": {"$in": [7]}, "_id": {"$in": [1, 2]}}
    # The keys differ if the shard key changed between the events.
    keys = keyed({"_id": 1}, {"k": 7, "_id": 2})
    assert bson.decode(filter_for_all(keys)) == {"_id": {"$in": [1, 2]}}


IDS = st.one_of(
    st.integers(0, 3),
    st.integers(0, 3).map(Int64),
    st.integers(0, 3).map(float),
    st.sampled_from(["a", "A", "b"]),
    st.sampled_from([ObjectId("0" * 24), ObjectId("1" * 24), None, True]),
)


def equal(one: Any, other: Any) -> bool:
    """Compare as a server does under a collation that ignores case."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, str) and isinstance(other, str):
        return one.lower() == other.lower()
    return bool(one == other)


@given(
    st.lists(st.tuples(st.integers(0, 1), IDS), max_size=8),
    st.lists(st.tuples(st.integers(0, 1), IDS), max_size=5),
)
def test_each_key_gets_the_document_of_its_own_request(wanted, stored):
    """After all repeated requests, each key has the document that its own request would find."""
    documents = [bson.encode({"_id": i, "k": k}) for k, i in stored]
    asked_for = raw(*({"k": k, "_id": i} for k, i in wanted))
    keys = [DocumentKey.of(each) for each in dict.fromkeys(asked_for)]

    def find(key: DocumentKey) -> list[bytes]:
        own = bson.decode(key.raw)
        return [
            document
            for document, (k, i) in zip(documents, stored, strict=True)
            if own["k"] == k and equal(own["_id"], i)
        ]

    def find_all(asked: list[DocumentKey]) -> list[bytes]:
        condition = bson.decode(filter_for_all(asked))
        return [
            document
            for document, (k, i) in zip(documents, stored, strict=True)
            if any(equal(i, each) for each in condition["_id"]["$in"])
            and k in condition["k"]["$in"]
        ]

    got: dict[bytes, list[bytes]] = {}
    for asked in requests_of(keys):
        pending = asked
        while len(pending) > 1:
            answer = assign(pending, find_all(pending))
            got |= {key: [document] for key, document in answer.found.items()}
            got |= {key.raw: [] for key in answer.absent}
            got |= {key.raw: find(key) for key in answer.alone}
            assert len(answer.again) < len(pending)
            pending = answer.again
        got |= {key.raw: find(key) for key in pending}
    for key in keys:
        expected = find(key)
        # One of several equal documents may match by its bytes, where a server reports two.
        assert got[key.raw] == expected or (len(expected) > 1 and got[key.raw][0] in expected)


def test_a_field_within_another_one_is_no_field_of_the_key():
    key = {"k": 1, "_id": 5}
    field = encoded({"k": 1})[4:-1]
    inside = [{"a": {"k": 1}}, {"a": field}, {"a": field.decode()}, {"a": [1], "k": 2}]
    for each in inside:
        assert matched([key], [{"_id": 5, **each}]) == ([], [], [key], [])
    for each in inside[:3]:
        assert matched([key], [{"_id": 5, **each, "k": 1}])[0] == [{"_id": 5, **each, "k": 1}]
    # A text with a zero, behind which something like the field follows.
    text = f"x\0{field.decode()}"
    named, other = {"k": 1, "_id": text}, {"_id": text, "k": 2}
    assert matched([named], [other]) == ([], [], [named], [])
    assert matched([named], [{**other, "k": 1}])[0] == [{**other, "k": 1}]
