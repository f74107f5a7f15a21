"""The same filters select the same documents on a real mongod and in the router."""

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from router.filters.index import FilterIndex
from router.filters.match_compiler import Declined
from router.filters.stream_filter import compile_filter
from tests.filters.chance import NUMBERS, Chance, Document
from tests.harness.clusters import start_real_cluster

ROUNDS = int(os.environ.get("FILTER_ROUNDS", "10"))
DOCUMENTS, FILTERS = 60, 40
"""The number of filters and of documents in a round."""


@pytest.fixture(scope="module")
def collection() -> Iterator[Any]:
    cluster = start_real_cluster(1)
    try:
        with cluster.direct("shard0") as client:
            yield client.get_database("filters").get_collection("events")
    finally:
        cluster.stop()


def _stored(collection: Any, documents: list[Document]) -> list[bytes]:
    """Store documents with numbers as ids; return them as the server stores them."""
    collection.delete_many({})
    collection.insert_many([{**each, "_id": n} for n, each in enumerate(documents)])
    raw = collection.with_options(CodecOptions(document_class=RawBSONDocument))
    return [bytes(each.raw) for each in raw.find({}).sort("_id", 1)]


def _through_router(stages: list[Document], stored: list[bytes]) -> list[bytes] | None:
    try:
        stream_filter = compile_filter(stages)
    except Declined:
        return None
    index: FilterIndex[int] = FilterIndex()
    index.add(0, stream_filter)
    routed = dict(index.route(stored)).get(0, [])
    return [stream_filter.project(each) for each in routed]


def _through_mongod(collection: Any, stages: list[Document]) -> list[bytes]:
    raw = collection.with_options(CodecOptions(document_class=RawBSONDocument))
    # The stages get computed documents, like those of a change stream: a projection of the
    # collection's own BSON keeps the names of arrays' elements.
    computed: Document = {"$replaceWith": {"$mergeObjects": ["$$ROOT"]}}
    pipeline = [{"$sort": {"_id": 1}}, computed, *stages]
    return [bytes(each.raw) for each in raw.aggregate(pipeline)]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_filters_select_the_same_documents_as_a_mongod(collection: Any, seed: int) -> None:
    chance = Chance(Random(seed), repeated=True)
    stored = _stored(collection, chance.events(DOCUMENTS))
    index: FilterIndex[int] = FilterIndex()
    expected: dict[int, list[bytes]] = {}
    for number in range(FILTERS):
        match = {"$match": chance.filter()}
        ours = _through_router([match], stored)
        if ours is None:
            continue
        theirs = _through_mongod(collection, [match])
        assert ours == theirs, match
        index.add(number, compile_filter([match]))
        if theirs:
            expected[number] = theirs
    assert len(index) > FILTERS / 4, "most filters were declined"
    assert dict(index.route(stored)) == expected, (
        "the index selects the same documents as each filter alone"
    )


@pytest.mark.parametrize("name", ["$eq", "$gt", "$gte", "$lt", "$lte"])
def test_all_numbers_compare_as_on_a_mongod(collection: Any, name: str) -> None:
    stored = _stored(collection, [{"fullDocument": {"a": each}} for each in NUMBERS])
    for operand in NUMBERS:
        match = {"$match": {"fullDocument.a": {name: operand}}}
        ours = _through_router([match], stored)
        assert ours is None or ours == _through_mongod(collection, [match]), match


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_projections_give_the_same_bytes_as_a_mongod(collection: Any, seed: int) -> None:
    chance = Chance(Random(seed), repeated=False)
    stored = _stored(collection, chance.events(DOCUMENTS))
    compared = 0
    for _ in range(FILTERS):
        stage = chance.projection()
        ours = _through_router([stage], stored)
        if ours is not None:
            assert ours == _through_mongod(collection, [stage]), stage
            compared += 1
    assert compared > FILTERS / 4, "most projections were declined"
