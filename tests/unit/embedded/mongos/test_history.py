"""Replaying the shards' events gives the data, after any operations through the mongos."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from bson import Binary, Timestamp

from embedded.clients import Client
from embedded.cluster import EmbeddedCluster

SHARDS = ["shard0", "shard1", "shard2"]
COLLECTION = "shop.orders"
Document = dict[str, Any]

REGIONS = "aehmpz"
WRITES = ("insert", "update", "update all", "replace", "change key", "delete", "upsert", "modify")
STEPS = 40
Step = tuple[str, Any, Any]


def drawn(chance: Random, kinds: Sequence[str], count: int) -> list[Step]:
    """Return steps: of a write, its kind, which of the documents it concerns, and a region."""
    made: list[Step] = []
    for kind in chance.choices(kinds, k=count):
        what: Any = chance.randrange(8)
        if kind == "move":
            what = chance.choice(SHARDS)
        elif kind == "transaction":
            what = drawn(chance, WRITES, chance.randrange(1, 5))
        made.append((kind, what, chance.choice(REGIONS)))
    return made


class Application:
    """A session that writes through the embedded mongos, documents of its own only.

    With ``resends`` it sends every second retryable write again, as if the reply had been lost. A
    chunk must not move in between: embedded shards hand over no records of sessions.
    """

    def __init__(self, cluster: EmbeddedCluster, number: int, *, resends: bool) -> None:
        self._resends = resends
        self._cluster = cluster
        self._client = Client()
        self._lsid = {"id": Binary(number.to_bytes(16, "big"), 4)}
        self._ids = [1000 * number]
        self._number = 0

    async def run(self, database: str, command: Document) -> Document:
        await asyncio.sleep(0)  # other applications take a turn
        return await self._cluster.mongos.run_command(database, command, self._client)

    async def find(self, where: Document, fields: Document) -> list[Document]:
        command = {"find": "orders", "filter": where, "batchSize": 1000, **fields}
        reply = await self.run("shop", command)
        return list(reply["cursor"]["firstBatch"]) if reply["ok"] else []

    async def steps(self, history: list[Step]) -> None:
        for kind, what, region in history:
            at = {"region": region, "_id": 3}
            if kind == "move":
                await self.run("admin", {"moveChunk": COLLECTION, "find": at, "to": what})
            elif kind == "split":
                await self.run("admin", {"split": COLLECTION, "middle": at})
            elif kind == "transaction":
                await self._transaction(what, commits=region != "z")
            else:
                self._number += 1
                fields = {"lsid": self._lsid, "txnNumber": self._number}
                # Drivers send no txnNumber with writes that they do not retry.
                await self._write((kind, what, region), {} if kind == "update all" else fields)

    async def _transaction(self, inner: list[Step], *, commits: bool) -> None:
        self._number += 1
        fields = {"lsid": self._lsid, "txnNumber": self._number, "autocommit": False}
        begin: Document = {"startTransaction": True}
        for write in inner:
            if not await self._write(write, {**fields, **begin}):
                return
            begin = {}
        if not begin:
            end = "commitTransaction" if commits else "abortTransaction"
            assert (await self.run("admin", {end: 1, **fields}))["ok"] == 1.0

    async def _write(self, write: Step, fields: Document) -> bool:
        """Run a write; return whether it has succeeded, as it must outside of transactions."""
        kind, which, region = write
        key = self._ids[which % len(self._ids)]
        if kind in ("insert", "upsert"):
            key = self._ids[-1] + 1
            self._ids.append(key)
        in_transaction = "autocommit" in fields
        # A transaction begins with a read of the document.
        known = await self.find({"_id": key}, fields if in_transaction else {})
        fields = {name: value for name, value in fields.items() if name != "startTransaction"}
        where = {"_id": key, "region": known[0]["region"] if known else region}
        command = {**self._command(kind, where, region), **fields}
        reply = await self.run("shop", command)
        if self._resends and fields and not in_transaction and which % 2:
            written = await self.find({"_id": key}, {})
            again = await self.run("shop", command)
            assert (again["ok"], again.get("n")) == (reply["ok"], reply.get("n"))
            assert await self.find({"_id": key}, {}) == written
        assert reply["ok"] == 1.0 or in_transaction, reply
        return reply["ok"] == 1.0 and not reply.get("writeErrors")

    def _command(self, kind: str, where: Document, region: str) -> Document:
        def update(change: Any, where: Document = where, **options: bool) -> Document:
            return {"update": "orders", "updates": [{"q": where, "u": change, **options}]}

        own = {"$gte": self._ids[0], "$lt": self._ids[0] + 1000}
        commands: dict[str, Document] = {
            "insert": {"insert": "orders", "documents": [{**where, "n": 0}]},
            "update": update({"$inc": {"n": 1}}),
            "update all": update({"$inc": {"n": 1}}, {"_id": own}, multi=True),
            "replace": update({**where, "whole": True}),
            "change key": update({"$set": {"region": region}}),
            "upsert": update({"$inc": {"n": 5}}, upsert=True),
            "delete": {"delete": "orders", "deletes": [{"q": where, "limit": 1}]},
            "modify": {"findAndModify": "orders", "query": where, "update": [{"$set": {"m": 1}}]},
        }
        return commands[kind]


async def events_of(cluster: EmbeddedCluster, shard: str, start: Timestamp) -> list[Document]:
    stage = {"$changeStream": {"startAtOperationTime": start}}
    command = {"aggregate": "orders", "pipeline": [stage], "cursor": {"batchSize": 10_000}}
    reply = await cluster.shard(shard).run_command("shop", command, Client())
    assert reply["ok"] == 1.0, reply
    return list(reply["cursor"]["firstBatch"])


def replayed(events: list[Document]) -> dict[int, Document]:
    """Apply events in token order to an empty collection.

    Documents are found by their whole document keys: if a transaction moves a document to another
    shard, the events of both shards have one cluster time, and the insert may come before an
    earlier update and the delete.
    """
    documents: dict[tuple[str, int], Document] = {}
    for event in sorted(events, key=lambda event: event["_id"]["_data"]):
        key = event["documentKey"]["region"], event["documentKey"]["_id"]
        before = documents.pop(key, {})
        assert bool(before) == (event["operationType"] != "insert"), event
        if event["operationType"] == "delete":
            continue
        document = dict(event.get("fullDocument", before))
        if event["operationType"] == "update":
            document |= event["updateDescription"]["updatedFields"]
            for field in event["updateDescription"]["removedFields"]:
                del document[field]
        documents[document["region"], document["_id"]] = document
    found = {number: document for (_, number), document in documents.items()}
    assert len(found) == len(documents)
    return found


async def check(histories: list[list[Step]]) -> None:
    """Run applications concurrently, then compare the data with the events."""
    async with EmbeddedCluster(3, noop_interval=0) as cluster:
        alone = len(histories) == 1
        applications = [Application(cluster, n, resends=alone) for n in range(len(histories))]
        first = applications[0]
        await first.run("admin", {"enableSharding": "shop", "primaryShard": "shard0"})
        key = {"region": 1, "_id": 1}
        await first.run("admin", {"shardCollection": COLLECTION, "key": key})
        time = (await first.run("admin", {"ping": 1}))["$clusterTime"]["clusterTime"]
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for application, history in zip(applications, histories, strict=True):
                group.create_task(application.steps(history))
        found = await first.find({}, {})
        for document in found:  # each is on its owner only
            where = {"_id": document["_id"], "region": document["region"]}
            assert await first.find(where, {}) == [document]
        start = Timestamp(time.time, time.inc + 1)
        events = [e for shard in SHARDS for e in await events_of(cluster, shard, start)]
        # The merged shard streams are the whole history, without migrations.
        assert replayed(events) == {document["_id"]: document for document in found}


@pytest.mark.parametrize("applications", [1, 3])
@pytest.mark.parametrize("seed", range(16))
async def test_events_replayed_in_token_order_give_the_collection(
    seed: int, applications: int
) -> None:
    chance, kinds = Random(seed), (*WRITES * 2, "move", "split", *("transaction",) * 4)
    await check([drawn(chance, kinds, STEPS) for _ in range(applications)])
