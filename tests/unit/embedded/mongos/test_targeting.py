"""The shards that single statements target, and statements that are refused."""

from typing import Any

import pytest
from bson import Binary, MinKey, Timestamp

from embedded.mongos.catalog import ShardedCollection
from embedded.mongos.chunk_map import Chunk, ChunkMap
from embedded.mongos.shard_key import ShardKey
from embedded.mongos.targeting import target_of_one, targets_of_delete, targets_of_update
from shard_client.errors import CommandError

KEY = ShardKey({"region": 1, "_id": 1})


@pytest.fixture
def orders() -> ShardedCollection:
    edges = [KEY.lowest, ("h", MinKey()), ("p", MinKey()), KEY.highest]
    chunks = [Chunk(edges[i], edges[i + 1], f"s{i}") for i in range(3)]
    return ShardedCollection(
        "shop.orders", Binary(b"0" * 16, 4), ChunkMap(KEY, chunks), False, Timestamp(1, 1)
    )


EVERYWHERE = {"s0", "s1", "s2"}
SET = {"$set": {"x": 1}}


@pytest.mark.parametrize(
    ("statement", "targets"),
    [
        ({"q": {"region": "a", "_id": 1}, "u": SET}, {"s0"}),
        ({"q": {"region": "a", "_id": 1}, "u": SET, "upsert": True}, {"s0"}),
        ({"q": {"region": "z"}, "u": SET}, {"s2"}),
        ({"q": {"_id": 1}, "u": SET}, EVERYWHERE),
        ({"q": {}, "u": SET, "multi": True}, EVERYWHERE),
        ({"q": {"n": 1}, "u": {"_id": 1, "region": "i"}}, {"s1"}),
    ],
)
def test_updates_are_sent_to_their_targets(
    orders: ShardedCollection, statement: dict[str, Any], targets: set[str]
) -> None:
    assert targets_of_update(orders, statement) == targets


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ({"q": {"n": 1}, "u": SET}, 72),
        ({"q": {"_id": {"$gt": 1}}, "u": SET}, 72),
        ({"q": {"region": "a"}, "u": SET, "upsert": True}, 61),
        ({"q": {"n": 1}, "u": SET, "upsert": True, "multi": True}, 61),
    ],
)
def test_updates_without_a_target_are_refused(
    orders: ShardedCollection, statement: dict[str, Any], code: int
) -> None:
    with pytest.raises(CommandError) as caught:
        targets_of_update(orders, statement)
    assert caught.value.code == code


def test_delete_and_find_and_modify(orders: ShardedCollection) -> None:
    assert targets_of_delete(orders, {"q": {"_id": 1}, "limit": 1}) == EVERYWHERE
    assert targets_of_delete(orders, {"q": {"n": 1}, "limit": 0}) == EVERYWHERE
    with pytest.raises(CommandError, match="shard key"):
        targets_of_delete(orders, {"q": {"n": 1}, "limit": 1})
    assert target_of_one(orders, {"region": "q", "_id": 3}, "upsert") == "s2"
    with pytest.raises(CommandError, match="must contain the shard key"):
        target_of_one(orders, {"region": "q"}, "upsert")
