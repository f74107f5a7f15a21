"""Collections that several conformance tests use."""

from typing import Any

from pymongo.collection import Collection
from pymongo.database import Database

from tests.harness.clusters import shard

Documents = Collection[dict[str, Any]]


def shard_over_three(db: Database[dict[str, Any]], name: str, shards: list[str]) -> Documents:
    """Shard a collection by ``{k: 1, _id: 1}``: k < 10, k < 20 and k >= 20 on a shard each."""
    chunks = {10: shards[1], 20: shards[2]}
    shard(db.client, f"{db.name}.{name}", {"k": 1, "_id": 1}, shards[0], chunks)
    return db[name]
