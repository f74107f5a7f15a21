"""Streams on a whole embedded member, through commands and replies."""

import asyncio

import bson
import pytest
from bson.int64 import Int64

from embedded.change_streams.resume_token import ResumeToken
from embedded.mongod import Mongod
from shard_client.errors import CommandError
from tests.unit.embedded.members import Driver


def watch(target, *stages, size=None, **options):
    cursor = {} if size is None else {"batchSize": size}
    return {
        "aggregate": target,
        "pipeline": [{"$changeStream": options}, *stages],
        "cursor": cursor,
    }


async def drained(driver, opened):
    cursor = opened["cursor"]
    events = list(cursor["firstBatch"])
    while cursor["id"]:
        command = {"getMore": Int64(cursor["id"]), "collection": "c", "maxTimeMS": 1}
        cursor = (await driver.run(command))["cursor"]
        events += cursor["nextBatch"]
        if not cursor["nextBatch"]:
            break
    return [bson.decode(event.raw) for event in events], cursor


@pytest.mark.parametrize("version", [1, 2])
async def test_commands_make_events(version):
    driver = Driver(Mongod("rs", token_version=version))
    opened = await driver.run(watch(1, showExpandedEvents=True))
    assert list(opened["cursor"]) == ["firstBatch", "postBatchResumeToken", "id", "ns"]
    images = {"changeStreamPreAndPostImages": {"enabled": True}}
    await driver.run({"create": "c", **images})
    await driver.run({"insert": "c", "documents": [{"_id": 1, "a": [1, 2, 3], "s": {"x": 1}}]})
    sets = {"$set": {"a.1": 9, "s.y": 2}, "$unset": {"s.x": 1}}
    await driver.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": sets}]})
    await driver.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": {"z": 1}}]})
    await driver.run({"delete": "c", "deletes": [{"q": {"_id": 1}, "limit": 1}]})
    await driver.run({"renameCollection": "db.c", "to": "db.d"}, "admin")
    await driver.run({"dropDatabase": 1})
    events, last = await drained(driver, opened)
    assert [event["operationType"] for event in events] == [
        "create",
        "insert",
        "update",
        "replace",
        "delete",
        "rename",
        "drop",
        "dropDatabase",
        "invalidate",
    ]
    assert list(last) == ["nextBatch", "postBatchResumeToken", "invalidated", "id", "ns"]
    assert {ResumeToken.parse(event["_id"]).version for event in events} == {version}
    change = events[2]["updateDescription"]
    assert change["updatedFields"] == {"a.1": 9, "s.y": 2}
    assert change["removedFields"] == ["s.x"]


async def test_images_of_a_transaction_and_the_present_document():
    driver = Driver()
    await driver.run({"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    await driver.run({"insert": "c", "documents": [{"_id": 1, "n": 1}, {"_id": 2, "n": 1}]})
    start = driver.mongod.oplog.last_ts
    await driver.start()
    for n in (2, 3):
        for key in (1, 2):
            q, u = {"_id": key}, {"$set": {"n": n}}
            await driver.within({"update": "c", "updates": [{"q": q, "u": u}]})
    await driver.commit()
    await driver.run({"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]})
    required = {"fullDocument": "required", "fullDocumentBeforeChange": "required"}
    opened = await driver.run(watch("c", startAtOperationTime=start, **required))
    events = (await drained(driver, opened))[0][1:]
    assert [
        (e["fullDocumentBeforeChange"]["n"], e.get("fullDocument", {}).get("n")) for e in events
    ] == [(1, 2), (1, 2), (2, 3), (2, 3), (3, None)]
    lookup = watch("c", startAtOperationTime=start, fullDocument="updateLookup")
    events = (await drained(driver, await driver.run(lookup)))[0][1:]
    assert [e.get("fullDocument", "-") for e in events] == [
        {"_id": 1, "n": 3},
        None,
        {"_id": 1, "n": 3},
        None,
        "-",
    ]


async def test_pipeline_updates_show_truncated_arrays():
    driver = Driver()
    await driver.run(
        {"insert": "c", "documents": [{"_id": 1, "a": list(range(40)), "p": "x" * 60}]}
    )
    opened = await driver.run(watch("c"))
    shorter = [{"$set": {"a": {"$slice": ["$a", 2]}}}]
    await driver.run({"update": "c", "updates": [{"q": {"_id": 1}, "u": shorter}]})
    [event] = (await drained(driver, opened))[0]
    assert event["updateDescription"] == {
        "updatedFields": {},
        "removedFields": [],
        "truncatedArrays": [{"field": "a", "newSize": 2}],
    }


async def test_killing_a_waiting_cursor_ends_its_get_more():
    driver = Driver()
    opened = await driver.run(watch("c", size=0))
    number = opened["cursor"]["id"]
    waiting = asyncio.create_task(
        driver.run({"getMore": number, "collection": "c", "maxTimeMS": 60_000})
    )
    await asyncio.sleep(0)
    await driver.run({"killCursors": "c", "cursors": [number]})
    with pytest.raises(CommandError) as error:
        await waiting
    assert error.value.code == 237
    with pytest.raises(CommandError) as gone:
        await driver.run({"getMore": number, "collection": "c"})
    assert gone.value.code == 43


async def test_a_lookup_uses_the_whole_document_key():
    driver = Driver()
    await driver.run({"insert": "c", "documents": [{"_id": 1, "region": "a"}]})
    uuid = driver.mongod.catalog.require("db.c").uuid
    find = driver.mongod.find_one
    assert find("db.c", uuid, {"region": "a", "_id": 1}) == {"_id": 1, "region": "a"}
    assert find("db.c", uuid, {"region": "b", "_id": 1}) is None
