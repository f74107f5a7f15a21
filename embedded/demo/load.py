"""The demo's load: paced inserts, updates, deletes and cross-shard transactions, all recorded."""

import random
import string
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from bson import MinKey
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession

from embedded.demo.ledger import Change

Client = AsyncMongoClient[dict[str, Any]]
"""The driver's client type."""

DATABASE, COLLECTION = "shop", "orders"
REGIONS = string.ascii_lowercase
TRANSACTION_EVERY = 25


async def shard_collection(client: Client, shards: list[str]) -> None:
    """Shard the demo's collection by region and spread its ranges over ``shards``."""
    namespace = f"{DATABASE}.{COLLECTION}"
    await client.admin.command("enableSharding", DATABASE, primaryShard=shards[0])
    await client.admin.command("shardCollection", namespace, key={"region": 1, "_id": 1})
    for boundary, shard in zip("jr", shards[1:], strict=False):
        await move_range(client, boundary, shard)


async def move_range(client: Client, boundary: str, shard: str) -> None:
    """Split the collection at region ``boundary`` and move the range above it to ``shard``."""
    namespace = f"{DATABASE}.{COLLECTION}"
    split_at = {"region": boundary, "_id": MinKey()}
    await client.admin.command("split", namespace, middle=split_at)
    await client.admin.command(
        "moveChunk", namespace, find={"region": boundary, "_id": 0}, to=shard
    )


class Load:
    """Writes through a driver until stopped.

    Args:
        client: a driver connected to the router, which passes writes on to mongos.
        written: gets every acknowledged write; those of one document are in order.
        rate: the target, in operations a second.
    """

    def __init__(self, client: Client, written: list[Change], rate: float) -> None:
        self._client = client
        self._orders = client[DATABASE][COLLECTION]
        self._written = written
        self._interval = 1.0 / rate
        self._random = random.Random(1)
        self._next_key = 0
        self._live: dict[int, tuple[str, int]] = {}

    async def run(self, stop: Callable[[], bool]) -> None:
        """Write at the set pace until ``stop()`` is true; a backlog beyond 0.1 s is dropped."""
        async for turn in self._paced(stop):
            if turn % TRANSACTION_EVERY == 0:
                await self._transaction()
            elif self._live and (dice := self._random.random()) < 0.35:
                await (self._delete() if dice < 0.1 else self._update())
            else:
                await self._insert()

    async def _paced(self, stop: Callable[[], bool]) -> AsyncIterator[int]:
        due, turn = anyio.current_time(), 0
        while not stop():
            turn += 1
            yield turn
            due = max(due + self._interval, anyio.current_time() - 0.1)
            await anyio.sleep_until(due)

    async def _insert(self, region: str | None = None) -> None:
        key, region = self._new_order(region)
        await self._orders.insert_one(self._order(key, region))
        self._note_insert(key, region)

    async def _update(self) -> None:
        key = self._random.choice(list(self._live))
        region, version = self._live[key]
        await self._orders.update_one(
            {"region": region, "_id": key}, {"$set": {"version": version + 1}}
        )
        self._live[key] = region, version + 1
        self._written.append(Change("update", key, version + 1))

    async def _delete(self) -> None:
        key = self._random.choice(list(self._live))
        region, _ = self._live.pop(key)
        await self._orders.delete_one({"region": region, "_id": key})
        self._written.append(Change("delete", key, None))

    async def _transaction(self) -> None:
        """Insert one order in each third of the alphabet, in one transaction."""
        orders = [self._new_order(self._random.choice(part)) for part in ("abc", "klm", "stuz")]

        async def insert_all(session: AsyncClientSession) -> None:
            for key, region in orders:
                await self._orders.insert_one(self._order(key, region), session=session)

        async with self._client.start_session() as session:
            await session.with_transaction(insert_all)
        for key, region in orders:
            self._note_insert(key, region)

    def _new_order(self, region: str | None) -> tuple[int, str]:
        self._next_key += 1
        return self._next_key, region or self._random.choice(REGIONS)

    def _order(self, key: int, region: str) -> dict[str, object]:
        items = [f"item {n}" for n in range(self._random.randrange(1, 6))]
        return {"_id": key, "region": region, "version": 0, "items": items, "note": "x" * 200}

    def _note_insert(self, key: int, region: str) -> None:
        self._live[key] = region, 0
        self._written.append(Change("insert", key, 0))
