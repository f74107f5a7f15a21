"""Collections that several conformance tests use."""

from typing import Any

from bson import MinKey
from pymongo.collection import Collection
from pymongo.database import Database

Documents = Collection[dict[str, Any]]


def shard_over_three(db: Database[dict[str, Any]], name: str, shards: list[str]) -> Documents:
    """Shard a collection by ``{k: 1, _id: 1}``: k < 10, k < 20 and k >= 20 on a shard each."""
    admin = db.client.admin
    namespace = f"{db.name}.{name}"
    admin.command("enableSharding", db.name, primaryShard=shards[0])
    admin.command("shardCollection", namespace, key={"k": 1, "_id": 1})
    for at, shard in ((10, shards[1]), (20, shards[2])):
        admin.command("split", namespace, middle={"k": at, "_id": MinKey()})
        admin.command("moveChunk", namespace, find={"k": at, "_id": 1}, to=shard)
    return db[name]
