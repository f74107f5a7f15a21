"""A member's commands: replies, errors, and the oplog entries of definitions."""

import asyncio
from typing import Any

import pytest
from bson import Binary, Int64, ObjectId, Timestamp

from embedded.clients import Client
from embedded.mongod import Mongod
from shard_client.errors import CommandError
from tests.unit.embedded.members import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver()


async def fails(driver: Driver, command: dict[str, Any], database: str = "db") -> int:
    with pytest.raises(CommandError) as caught:
        await driver.run(command, database)
    return caught.value.code


async def test_the_first_insert_creates_the_collection(driver: Driver) -> None:
    assert await driver.run({"insert": "c", "documents": [{"x": 1, "_id": 7}]}) == {"n": 1}
    [create] = driver.entries("c")
    [insert] = driver.entries("i")
    uuid = driver.mongod.catalog.require("db.c").uuid
    assert (create["ns"], create["ui"]) == ("db.$cmd", uuid)
    assert create["o"] == {"create": "c", "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
    assert list(insert["o"]) == ["_id", "x"]
    assert (insert["o2"], insert["ui"], insert["ns"], insert["v"]) == ({"_id": 7}, uuid, "db.c", 2)
    assert insert["wall"].microsecond % 1000 == 0


async def test_document_keys_begin_with_the_shard_key(driver: Driver) -> None:
    await driver.run({"create": "c"})
    driver.mongod.set_shard_key("db.c", ("region", "a.b", "_id"))
    await driver.run({"insert": "c", "documents": [{"_id": 1, "region": "x", "a": {"b": 2}}]})
    await driver.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$set": {"n": 1}}}]})
    await driver.run({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 0}]})
    key = {"region": "x", "a.b": 2, "_id": 1}
    insert, update, delete = driver.entries("i", "u", "d")
    assert list(insert["o2"].items()) == list(key.items())
    assert update["o2"] == key
    assert delete["o"] == key


async def test_ordered_inserts_stop_at_an_error_and_unordered_ones_do_not(driver: Driver) -> None:
    given = {"insert": "c", "documents": [{"_id": 1}, {"_id": 1}, {"_id": 2}]}
    reply = await driver.run(dict(given))
    assert (reply["n"], reply["writeErrors"][0]["index"]) == (1, 1)
    reply = await driver.run(given | {"ordered": False})
    assert reply["n"] == 1
    assert [error["index"] for error in reply["writeErrors"]] == [0, 1]
    assert reply["writeErrors"][0]["keyPattern"] == {"_id": 1}


async def test_a_large_write_does_not_block_others(driver: Driver) -> None:
    documents = [{"_id": i} for i in range(1000)]
    writing = asyncio.create_task(driver.run({"insert": "c", "documents": documents}))
    seen = set()
    while not writing.done():
        seen.add((await Driver(driver.mongod).run({"count": "c"}))["n"])
        await asyncio.sleep(0)
    assert len(seen) > 2
    assert (await writing)["n"] == 1000


async def test_updates_report_matches_changes_and_upserts(driver: Driver) -> None:
    await driver.run({"insert": "c", "documents": [{"_id": i, "n": i} for i in range(3)]})
    reply = await driver.run(
        {
            "update": "c",
            "updates": [
                {"q": {"n": {"$gte": 1}}, "u": {"$set": {"n": 1}}, "multi": True},
                {"q": {"_id": 9}, "u": {"$inc": {"n": 1}}, "upsert": True},
                {"q": {"n": "none"}, "u": {"x": 1}, "upsert": True},
            ],
        }
    )
    assert (reply["n"], reply["nModified"]) == (4, 1)
    assert reply["upserted"][0] == {"index": 1, "_id": 9}
    assert isinstance(reply["upserted"][1]["_id"], ObjectId)


async def test_indexes_are_logged_one_by_one_on_an_empty_collection(driver: Driver) -> None:
    await driver.run({"create": "c"})
    wanted = [{"key": {"x": 1}, "name": "x1"}, {"key": {"y": -1}, "name": "y1"}]
    await driver.run({"createIndexes": "c", "indexes": wanted})
    again = await driver.run({"createIndexes": "c", "indexes": wanted})
    assert again["note"] == "all indexes already exist"
    await driver.run({"dropIndexes": "c", "index": "x1"})
    _, first, second, gone = driver.entries("c")
    assert first["o"] == {"createIndexes": "c", "v": 2, "key": {"x": 1}, "name": "x1"}
    assert second["o"]["name"] == "y1"
    assert gone["o"] == {"dropIndexes": "c", "index": "x1"}
    assert gone["o2"] == {"v": 2, "key": {"x": 1}, "name": "x1"}
    assert await fails(driver, {"dropIndexes": "c", "index": "x1"}) == 27
    clash = {"key": {"z": 1}, "name": "y1"}
    assert await fails(driver, {"createIndexes": "c", "indexes": [clash]}) == 86


async def test_definitions_are_logged_as_recorded(driver: Driver) -> None:
    await driver.run({"create": "ddl", "capped": False})
    uuid = driver.mongod.catalog.require("db.ddl").uuid
    validator = {"x": {"$exists": True}}
    await driver.run({"collMod": "ddl", "validator": validator})
    await driver.run({"renameCollection": "db.ddl", "to": "db.renamed"}, "admin")
    reply = await driver.run({"drop": "renamed"})
    assert reply == {"nIndexesWas": 1, "ns": "db.renamed"}
    create, modify, rename, drop = driver.entries("c")
    assert "capped" not in create["o"]
    assert modify["o"] == {"collMod": "ddl", "validator": validator}
    assert modify["o2"] == {"collectionOptions_old": {"uuid": uuid}}
    assert rename["o"] == {"renameCollection": "db.ddl", "to": "db.renamed", "stayTemp": False}
    assert (drop["o"], drop["o2"]) == ({"drop": "renamed"}, {"numRecords": 0})
    assert all(each["ui"] == uuid for each in (create, modify, rename, drop))


async def test_dropping_a_database_drops_its_collections_first(driver: Driver) -> None:
    await driver.run({"create": "b"})
    await driver.run({"create": "a"})
    assert await driver.run({"dropDatabase": 1}) == {"dropped": "db"}
    assert [next(iter(e["o"])) for e in driver.entries("c")[2:]] == ["drop", "drop", "dropDatabase"]
    assert await driver.run({"dropDatabase": 1}) == {}


async def test_renaming_onto_a_collection_needs_drop_target(driver: Driver) -> None:
    await driver.run({"insert": "a", "documents": [{"_id": "a"}]})
    await driver.run({"insert": "b", "documents": [{"_id": "b"}]})
    target = driver.mongod.catalog.require("db.b").uuid
    rename = {"renameCollection": "db.a", "to": "db.b"}
    assert await fails(driver, dict(rename), "admin") == 48
    await driver.run(rename | {"dropTarget": True}, "admin")
    assert driver.entries("c")[-1]["o"]["dropTarget"] == target
    assert await driver.documents("b") == [{"_id": "a"}]


async def test_views_are_documents_of_system_views(driver: Driver) -> None:
    await driver.run({"insert": "c", "documents": [{"_id": 1, "n": 1}, {"_id": 2, "n": 2}]})
    pipeline = [{"$match": {"n": 2}}]
    await driver.run({"create": "v", "viewOn": "c", "pipeline": pipeline})
    assert driver.entries("i")[-1]["o"] == {"_id": "db.v", "viewOn": "c", "pipeline": pipeline}
    assert await driver.documents("v") == [{"_id": 2, "n": 2}]
    assert await fails(driver, {"create": "v", "viewOn": "c", "pipeline": []}) == 48
    reply = await driver.run({"insert": "v", "documents": [{"_id": 9}]})
    assert reply["writeErrors"][0]["code"] == 166
    await driver.run({"drop": "v"})
    assert driver.mongod.catalog.view("db.v") is None
    await driver.run({"create": "v", "viewOn": "c", "pipeline": pipeline})
    assert driver.mongod.catalog.view("db.v") is not None


async def test_documents_have_at_most_16_mib(driver: Driver) -> None:
    too_much = {"_id": 1, "p": "x" * (16 << 20) + "y" * 20_000}
    [error] = (await driver.run({"insert": "c", "documents": [too_much]}))["writeErrors"]
    assert error["code"] == 10334
    assert await driver.documents() == []
    await driver.run({"insert": "c", "documents": [{"_id": 1, "p": "x" * (9 << 20)}]})
    grow = {"q": {"_id": 1}, "u": {"$set": {"q": "x" * (9 << 20)}}}
    [error] = (await driver.run({"update": "c", "updates": [grow]}))["writeErrors"]
    assert error["code"] == 17419


async def test_find_by_id_does_not_scan(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    await driver.run({"insert": "c", "documents": [{"_id": i} for i in range(10)]})
    collection = driver.mongod.catalog.require("db.c")
    monkeypatch.setattr(collection, "documents", lambda: pytest.fail("a scan"))
    for condition in ({"_id": 3}, {"_id": {"$in": [3, 99]}}, {"_id": {"$eq": 3.0}, "x": None}):
        reply = await driver.run({"find": "c", "filter": condition})
        assert reply["cursor"]["firstBatch"] == [{"_id": 3}]


async def test_cursors_give_batches_and_close(driver: Driver) -> None:
    await driver.run({"insert": "c", "documents": [{"_id": i} for i in range(10)]})
    cursor = (await driver.run({"find": "c", "batchSize": 4, "sort": {"_id": -1}}))["cursor"]
    assert [d["_id"] for d in cursor["firstBatch"]] == [9, 8, 7, 6]
    more = {"getMore": cursor["id"], "collection": "c", "batchSize": 5}
    reply = (await driver.run(dict(more)))["cursor"]
    assert len(reply["nextBatch"]) == 5
    reply = (await driver.run(dict(more)))["cursor"]
    assert (len(reply["nextBatch"]), reply["id"]) == (1, 0)
    assert await fails(driver, more) == 43
    assert len(driver.mongod.cursors) == 0
    cursor = (await driver.run({"find": "c", "batchSize": 1}))["cursor"]
    reply = await driver.run({"killCursors": "c", "cursors": [cursor["id"], Int64(5)]})
    assert (reply["cursorsKilled"], reply["cursorsNotFound"]) == ([cursor["id"]], [5])


async def test_count_distinct_and_aggregate(driver: Driver) -> None:
    documents = [{"_id": i, "k": i % 2, "tags": [i, "t"]} for i in range(6)]
    await driver.run({"insert": "c", "documents": documents})
    assert (await driver.run({"count": "c", "query": {"k": 1}, "skip": 1}))["n"] == 2
    assert (await driver.run({"distinct": "c", "key": "tags"}))["values"][:3] == [0, "t", 1]
    group = [{"$group": {"_id": "$k", "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]
    reply = await driver.run({"aggregate": "c", "pipeline": group, "cursor": {}})
    assert reply["cursor"]["firstBatch"] == [{"_id": 0, "n": 3}, {"_id": 1, "n": 3}]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"noSuchCommand": 1}, 59),
        ({"getMore": Int64(5), "collection": "c"}, 43),
        ({"getMore": 5, "collection": "c"}, 14),
        ({"insert": "c"}, 40414),
        ({"insert": "c", "documents": []}, 16),
        ({"insert": 3, "documents": [{}]}, 73),
        ({"find": ""}, 73),
        ({"find": "c", "filter": 3}, 14),
        ({"find": "c", "skip": -1}, 51024),
        ({"drop": "missing"}, 26),
        ({"listIndexes": "missing"}, 26),
        ({"collMod": "missing"}, 26),
        ({"createIndexes": "c", "indexes": [{"key": {"x": 1}, "unique": True}]}, 238),
        ({"find": "c", "readConcern": {"afterClusterTime": Timestamp(2**32 - 1, 1)}}, 72),
    ],
)
async def test_bad_commands_get_mongodbs_codes(
    driver: Driver, command: dict[str, Any], code: int
) -> None:
    assert await fails(driver, command) == code


async def test_listings_show_collections_and_indexes(driver: Driver) -> None:
    await driver.run({"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    [info] = (await driver.run({"listCollections": 1}))["cursor"]["firstBatch"]
    assert info["options"] == {"changeStreamPreAndPostImages": {"enabled": True}}
    assert isinstance(info["info"]["uuid"], Binary)
    [index] = (await driver.run({"listIndexes": "c"}))["cursor"]["firstBatch"]
    assert index["name"] == "_id_"


async def test_noop_writes_advance_the_oplog_beyond_a_cluster_time(driver: Driver) -> None:
    mongod = driver.mongod
    wanted = Timestamp(mongod.clock.time.time, mongod.clock.time.inc + 100)
    note = {"appendOplogNote": 1, "maxClusterTime": wanted, "data": {"why": "nudge"}}
    gossip = {"$clusterTime": {"clusterTime": wanted, "signature": {}}}
    reply = await mongod.run_command("admin", note | gossip, driver.client)
    assert reply["ok"] == 1.0
    assert reply["operationTime"] > wanted
    assert driver.entries("n")[-1]["o"] == {"why": "nudge"}
    reply = await mongod.run_command("admin", note | gossip, driver.client)
    assert (reply["ok"], reply["code"], reply["codeName"]) == (0.0, 209, "StaleClusterTime")


async def test_reads_with_a_cluster_time_advance_to_it(driver: Driver) -> None:
    mongod = driver.mongod
    wanted = Timestamp(mongod.clock.time.time, mongod.clock.time.inc + 5)
    find = {"find": "c", "readConcern": {"level": "majority", "afterClusterTime": wanted}}
    gossip = {"$clusterTime": {"clusterTime": wanted, "signature": {}}}
    reply = await mongod.run_command("db", find | gossip, driver.client)
    assert reply["operationTime"] >= wanted
    assert reply["$clusterTime"]["clusterTime"] >= wanted


async def test_reads_at_a_cluster_time_need_an_unchanged_collection(
    driver: Driver,
) -> None:
    await driver.run({"insert": "c", "documents": [{"_id": 1}]})
    level = {"level": "snapshot", "atClusterTime": driver.mongod.clock.time}
    find = {"find": "c", "readConcern": level}
    await driver.run({"insert": "other", "documents": [{"_id": 1}]})
    await driver.run({"delete": "other", "deletes": [{"q": {}, "limit": 1}]})
    assert await fails(driver, find) == 239  # "other" was created since
    level["atClusterTime"] = driver.mongod.clock.time
    await driver.run({"insert": "other", "documents": [{"_id": 2}]})
    assert (await driver.run(find))["cursor"]["firstBatch"] == [{"_id": 1}]
    await driver.run({"insert": "c", "documents": [{"_id": 2}]})
    assert await fails(driver, find) == 239


async def test_migrations_are_marked_and_may_set_the_uuid(driver: Driver) -> None:
    uuid = driver.mongod.new_uuid()
    mover = Client(in_process=True, from_migrate=True)
    await driver.mongod.execute("db", {"create": "c", "uuid": uuid}, mover)
    await driver.mongod.execute("db", {"insert": "c", "documents": [{"_id": 1}]}, mover)
    assert driver.mongod.catalog.require("db.c").uuid == uuid
    assert [e["fromMigrate"] for e in driver.entries("c", "i")] == [True, True]


async def test_images_are_removed_with_the_oplog() -> None:
    driver = Driver(Mongod("rs", oplog_size=8))
    await driver.run({"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    await driver.run({"insert": "c", "documents": [{"_id": 1, "n": 0}]})
    change = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]}
    await driver.run(dict(change))
    mongod = driver.mongod
    uuid, first = mongod.catalog.require("db.c").uuid, mongod.oplog.last_ts
    assert mongod.images(uuid, first) == ({"_id": 1, "n": 0}, {"_id": 1, "n": 1})
    for _ in range(20):
        await driver.run(dict(change))
    assert mongod.images(uuid, first) is None
    assert mongod.find_one("db.c", uuid, {"_id": 1}) == {"_id": 1, "n": 21}


async def test_the_config_server_identifies_itself() -> None:
    mongod = Mongod("cfg", "configsvr", noop_interval=0)
    await mongod.start()
    try:
        reply = await mongod.run_command("admin", {"hello": 1}, Client())
    finally:
        await mongod.stop()
    assert (reply["configsvr"], reply["setName"], reply["isWritablePrimary"]) == (2, "cfg", True)
