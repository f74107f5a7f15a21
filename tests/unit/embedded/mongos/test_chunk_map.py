"""Shard keys, targeting and chunks, without a server."""

from typing import Any

import pytest
from bson import Int64, MaxKey, MinKey, ObjectId, Regex
from hypothesis import given
from hypothesis import strategies as st

from embedded.mongos.chunk_map import Chunk, ChunkMap, order
from embedded.mongos.shard_key import ShardKey, hashed_value
from embedded.mongos.targeting import leading_values
from shard_client.errors import CommandError

REGION = ShardKey({"region": 1, "_id": 1})


def chunked(key: ShardKey, *bounds: Any) -> ChunkMap:
    """Return one chunk on each of shards s0, s1, … with these bounds in between."""
    lows = [key.lowest, *bounds]
    highs = [*bounds, key.highest]
    return ChunkMap(
        key,
        [Chunk(low, high, f"s{i}") for i, (low, high) in enumerate(zip(lows, highs, strict=True))],
    )


@pytest.fixture
def regions() -> ChunkMap:
    return chunked(REGION, ("h", MinKey()), ("p", MinKey()))


def targets(chunks: ChunkMap, filter_: dict[str, Any]) -> set[str]:
    return chunks.owners(leading_values(chunks.key, filter_))


@pytest.mark.parametrize(
    ("document", "owner"),
    [
        ({"_id": 1, "region": "a"}, "s0"),
        ({"_id": 1, "region": "gzz"}, "s0"),
        ({"_id": MinKey(), "region": "h"}, "s1"),
        ({"_id": None, "region": "h"}, "s1"),
        ({"_id": 1, "region": "o"}, "s1"),
        ({"_id": 1, "region": "p"}, "s2"),
        ({"_id": 1}, "s0"),  # missing counts as null, which sorts before strings
        ({"_id": 1, "region": 7}, "s0"),
        ({"_id": 1, "region": ObjectId()}, "s2"),
        ({"_id": 1, "region": MaxKey()}, "s2"),
    ],
)
def test_a_document_is_owned_by_bson_order(
    regions: ChunkMap, document: dict[str, Any], owner: str
) -> None:
    assert regions.owner_of_document(document) == owner


def test_array_in_shard_key_is_refused(regions: ChunkMap) -> None:
    with pytest.raises(CommandError, match="array") as caught:
        regions.owner_of_document({"_id": 1, "region": ["a"]})
    assert caught.value.code == 61


@pytest.mark.parametrize(
    ("filter_", "shards"),
    [
        ({"region": "a", "_id": 5}, {"s0"}),
        ({"region": "h"}, {"s1"}),
        ({"region": {"$eq": "q"}, "_id": {"$gt": 1}}, {"s2"}),
        ({"region": {"$gte": "i", "$lt": "k"}}, {"s0", "s1", "s2"}),
        ({"region": "z", "$or": [{"n": 2}, {"n": 1}]}, {"s2"}),
        ({"_id": 5}, {"s0", "s1", "s2"}),
        ({"region": Regex("^a")}, {"s0", "s1", "s2"}),
        ({"region": {"$ne": "a"}}, {"s0", "s1", "s2"}),
        ({"region": ["a"]}, {"s0", "s1", "s2"}),
        ({}, {"s0", "s1", "s2"}),
    ],
)
def test_filter_targets_owners(
    regions: ChunkMap, filter_: dict[str, Any], shards: set[str]
) -> None:
    assert targets(regions, filter_) == shards


def test_dotted_key_reads_subdocuments() -> None:
    key = ShardKey({"a.b": 1})
    assert key.of_document({"a": {"b": 3}}) == (3,)
    assert key.of_document({"a": 3}) == (None,)


def test_equal_numbers_have_one_hash() -> None:
    assert hashed_value(1) == hashed_value(1.9) == hashed_value(Int64(1))
    assert hashed_value({"a": 1}) != hashed_value({"b": 1})


def test_hashed_key_targets_one_shard_by_equality_only() -> None:
    key = ShardKey({"_id": "hashed"})
    chunks = chunked(key, (Int64(0),))
    assert targets(chunks, {"_id": 1}) == {chunks.owner_of_document({"_id": 1})}
    assert targets(chunks, {"_id": {"$gt": 1}}) == {"s0", "s1"}


def test_split_and_move_keep_the_key_space_covered(regions: ChunkMap) -> None:
    regions.split(("c", MinKey()))
    regions.move(regions.chunk_of(("c", 1)), "s9")
    assert targets(regions, {"region": "d"}) == {"s9"}
    assert targets(regions, {"region": "b"}) == {"s0"}
    assert len(regions) == 4
    with pytest.raises(CommandError, match="boundary"):
        regions.split(("h", MinKey()))


def test_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="tile"):
        ChunkMap(REGION, [Chunk(REGION.lowest, ("a", 1), "s0")])


@pytest.mark.parametrize("pattern", [{}, {"a": "text"}, {"a": -1}, {"a": "hashed", "b": "hashed"}])
def test_bad_patterns_are_refused(pattern: dict[str, Any]) -> None:
    with pytest.raises(CommandError):
        ShardKey(pattern)


values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(-5, 5), st.text("abc", max_size=3)
)


@given(
    document=st.fixed_dictionaries({"region": values, "_id": st.integers(-3, 3)}),
    bounds=st.lists(st.tuples(values, st.integers(-3, 3)), max_size=6),
)
def test_queries_that_match_a_document_target_its_owner(
    document: dict[str, Any], bounds: list[Any]
) -> None:
    unique = {order(bound): bound for bound in bounds}
    chunks = chunked(REGION, *(unique[key] for key in sorted(unique)))
    owner = chunks.owner_of_document(document)
    region, id_ = document["region"], document["_id"]
    for filter_ in [
        {"region": region},
        {"region": region, "_id": id_},
        {"region": {"$gte": region}},
        {"region": {"$lte": region}},
    ]:
        assert owner in targets(chunks, filter_)
