"""Replaying the shards' events gives the data, after any operations through the mongos."""

import asyncio
from typing import Any

from bson import Binary, Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded.clients import Client
from embedded.cluster import EmbeddedCluster

REGIONS = "aehmpz"
IDS = range(8)
SHARDS = ["shard0", "shard1", "shard2"]
COLLECTION = "shop.orders"

regions, ids, shards = st.sampled_from(REGIONS), st.sampled_from(IDS), st.sampled_from(SHARDS)
writes = st.one_of(
    st.tuples(st.just("insert"), ids, regions),
    st.tuples(st.just("update"), ids),
    st.tuples(st.just("update all")),
    st.tuples(st.just("replace"), ids, regions),
    st.tuples(st.just("change key"), ids, regions),
    st.tuples(st.just("delete"), ids),
    st.tuples(st.just("upsert"), ids, regions),
    st.tuples(st.just("modify"), ids),
)
steps = st.one_of(
    writes,
    st.tuples(st.just("move"), regions, shards),
    st.tuples(st.just("split"), regions),
    st.tuples(st.just("transaction"), st.lists(writes, max_size=4), st.booleans()),
)


class Application:
    """A session that writes through the embedded mongos, with a model of the expected data."""

    def __init__(self, cluster: EmbeddedCluster, number: int = 0) -> None:
        self._cluster = cluster
        self._client = Client()
        self._lsid = {"id": Binary(number.to_bytes(16, "big"), 4)}
        self._first_id = number * 100
        self._number = 0
        self.model: dict[int, dict[str, Any]] = {}

    async def run(self, database: str, command: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)  # other applications take a turn
        return await self._cluster.mongos.run_command(database, command, self._client)

    async def admin(self, command: dict[str, Any]) -> None:
        await self.run("admin", command)

    async def steps(self, history: list[tuple[Any, ...]]) -> None:
        for step in history:
            await self.step(step)

    async def step(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("move", region, shard):
                await self.admin(
                    {"moveChunk": COLLECTION, "find": {"region": region, "_id": 0}, "to": shard}
                )
            case ("split", region):
                await self.admin({"split": COLLECTION, "middle": {"region": region, "_id": 3}})
            case ("transaction", inner, commits):
                await self._transaction(inner, commits)
            case _:
                self._number += 1
                fields = {"lsid": self._lsid, "txnNumber": self._number}
                await self._write(self._own(step), fields)

    async def _transaction(self, inner: list[tuple[Any, ...]], commits: bool) -> None:
        self._number += 1
        before = {key: dict(value) for key, value in self.model.items()}
        fields: dict[str, Any] = {
            "lsid": self._lsid, "txnNumber": self._number, "autocommit": False,
        }  # fmt: skip
        good, begin = True, {"startTransaction": True}
        for write in map(self._own, inner):
            if good and self._command(write) is not None:
                good = await self._write(write, {**fields, **begin})
                begin = {}
        if good and not begin:
            how = "commitTransaction" if commits else "abortTransaction"
            assert (await self.run("admin", {how: 1, **fields}))["ok"] == 1.0
        if not (good and commits):
            self.model = before

    async def _write(self, write: tuple[Any, ...], fields: dict[str, Any]) -> bool:
        command = self._command(write)
        if command is None:
            return True
        if write[0] == "update all" and "autocommit" not in fields:
            fields = {}  # drivers send no txnNumber with writes that they do not retry
        reply = await self.run("shop", {**command, **fields})
        assert reply["ok"] == 1.0 or "autocommit" in fields, reply
        failed = reply["ok"] != 1.0 or bool(reply.get("writeErrors"))
        if not failed:
            self._note(write)
        return not failed

    def _own(self, write: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the write with one of this application's ids."""
        if write == ("update all",):
            return write
        return (write[0], write[1] + self._first_id, *write[2:])

    def _command(self, write: tuple[Any, ...]) -> dict[str, Any] | None:
        match write:
            case ("insert", key, region):
                if key in self.model:
                    return None  # another shard may have it, since _id is not unique across shards
                return {"insert": "orders", "documents": [{"_id": key, "region": region, "n": 0}]}
            case ("update all",):
                mine = {"$gte": self._first_id, "$lt": self._first_id + 100}
                return _update({"_id": mine}, {"$inc": {"n": 1}}, multi=True)
            case ("upsert", key, region):
                if key in self.model and self.model[key]["region"] != region:
                    return None
                where = {"_id": key, "region": region}
                return _update(where, {"$inc": {"n": 5}}, upsert=True)
        key = write[1]
        if key not in self.model:
            return None
        where = {"_id": key, "region": self.model[key]["region"]}
        match write:
            case ("update", _):
                return _update(where, {"$inc": {"n": 1}})
            case ("replace", _, region):
                return _update(where, {"_id": key, "region": region, "whole": True})
            case ("change key", _, region):
                return _update(where, {"$set": {"region": region}})
            case ("delete", _):
                return {"delete": "orders", "deletes": [{"q": {"_id": key}, "limit": 1}]}
            case ("modify", _):
                change = [{"$set": {"m": 1}}]
                return {"findAndModify": "orders", "query": where, "update": change}
        raise AssertionError(write)

    def _note(self, write: tuple[Any, ...]) -> None:
        match write:
            case ("insert", key, region):
                self.model[key] = {"_id": key, "region": region, "n": 0}
            case ("update all",):
                for document in self.model.values():
                    document["n"] = document.get("n", 0) + 1
            case ("update", key):
                self.model[key]["n"] = self.model[key].get("n", 0) + 1
            case ("replace", key, region):
                self.model[key] = {"_id": key, "region": region, "whole": True}
            case ("change key", key, region):
                self.model[key]["region"] = region
            case ("delete", key):
                del self.model[key]
            case ("upsert", key, region):
                document = self.model.setdefault(key, {"_id": key, "region": region})
                document["n"] = document.get("n", 0) + 5
            case ("modify", key):
                self.model[key]["m"] = 1


def _update(where: dict[str, Any], change: Any, **options: bool) -> dict[str, Any]:
    return {"update": "orders", "updates": [{"q": where, "u": change, **options}]}


async def events_of(cluster: EmbeddedCluster, shard: str, start: Timestamp) -> list[dict[str, Any]]:
    stage = {"$changeStream": {"startAtOperationTime": start}}
    command = {"aggregate": "orders", "pipeline": [stage], "cursor": {}}
    reply = await cluster.shard(shard).run_command("shop", command, Client())
    assert reply["ok"] == 1.0, reply
    return list(reply["cursor"]["firstBatch"])


def replayed(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Apply events in token order to an empty collection.

    Documents are found by their whole document keys: if a transaction moves a document to another
    shard, the events of both shards have one cluster time, and the insert may come before an
    earlier update and the delete.
    """
    documents: dict[tuple[str, int], dict[str, Any]] = {}
    for event in sorted(events, key=lambda event: event["_id"]["_data"]):
        key = event["documentKey"]["region"], event["documentKey"]["_id"]
        match event["operationType"]:
            case "insert":
                documents[key] = dict(event["fullDocument"])
            case "replace":
                del documents[key]
                document = dict(event["fullDocument"])
                documents[document["region"], document["_id"]] = document
            case "update":
                document = documents.pop(key)
                document |= event["updateDescription"]["updatedFields"]
                for field in event["updateDescription"]["removedFields"]:
                    del document[field]
                documents[document["region"], document["_id"]] = document
            case "delete":
                del documents[key]
            case other:
                raise AssertionError(other)
    found = {number: document for (_, number), document in documents.items()}
    assert len(found) == len(documents)
    return found


async def check(histories: list[list[tuple[Any, ...]]]) -> None:
    """Run applications concurrently, then compare data and events with their models."""
    async with EmbeddedCluster(3, noop_interval=0) as cluster:
        applications = [Application(cluster, number) for number in range(len(histories))]
        first = applications[0]
        await first.admin({"enableSharding": "shop", "primaryShard": "shard0"})
        await first.admin({"shardCollection": COLLECTION, "key": {"region": 1, "_id": 1}})
        reply = await first.run("admin", {"ping": 1})
        time = reply["$clusterTime"]["clusterTime"]
        start = Timestamp(time.time, time.inc + 1)
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for application, history in zip(applications, histories, strict=True):
                group.create_task(application.steps(history))
        model = {key: d for application in applications for key, d in application.model.items()}
        # every document is on its owner only
        reply = await first.run("shop", {"find": "orders", "batchSize": 1000})
        found = {d["_id"]: d for d in reply["cursor"]["firstBatch"]}
        assert len(found) == len(reply["cursor"]["firstBatch"])
        assert found == model
        for key, document in model.items():
            where = {"_id": key, "region": document["region"]}
            reply = await first.run("shop", {"find": "orders", "filter": where})
            assert reply["cursor"]["firstBatch"] == [document]
        # the merged shard streams are the whole history, without migrations
        events = [e for shard in SHARDS for e in await events_of(cluster, shard, start)]
        assert replayed(events) == model


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=25))
def test_events_replayed_in_token_order_give_the_collection(
    history: list[tuple[Any, ...]],
) -> None:
    asyncio.run(check([history]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(steps, max_size=12), min_size=2, max_size=4))
def test_concurrent_applications_do_not_interfere(
    histories: list[list[tuple[Any, ...]]],
) -> None:
    asyncio.run(check(histories))
