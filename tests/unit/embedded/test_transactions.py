"""Transactions of one member: isolation, conflicts, oplog entries; retryable writes."""

import asyncio
from typing import Any

import pytest
from bson import Timestamp

from embedded.mongod import Mongod
from embedded.sessions import full_lsid
from shard_client.errors import CommandError
from tests.unit.embedded.members import OTHER_SESSION, SESSION, Driver


def insert(*documents: dict, collection: str = "c") -> dict:
    return {"insert": collection, "documents": list(documents)}


def set_field(_id: object, **fields: object) -> dict:
    return {"update": "c", "updates": [{"q": {"_id": _id}, "u": {"$set": fields}}]}


async def seeded(**options: Any) -> tuple[Driver, Driver]:
    one = Driver(Mongod("rs", **options))
    await one.run(insert({"_id": 1, "n": 0}, {"_id": 2, "n": 0}))
    return one, Driver(one.mongod, OTHER_SESSION)


async def test_a_commit_is_one_entry_that_holds_all_operations() -> None:
    one, _ = await seeded()
    await one.start()
    await one.within(insert({"_id": 3}))
    await one.within(set_field(1, n=5))
    await one.within({"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]})
    before = one.mongod.oplog.last_ts
    assert [d["_id"] for d in await one.documents()] == [1, 2]
    await one.commit()
    assert await one.documents() == [{"_id": 1, "n": 5}, {"_id": 3}]
    [entry] = one.mongod.oplog.since(before)
    assert entry["lsid"] == full_lsid(SESSION)
    assert (entry["txnNumber"], entry["op"], entry["ns"]) == (1, "c", "admin.$cmd")
    assert entry["prevOpTime"]["ts"] == Timestamp(0, 0)
    uuid = one.mongod.catalog.require("db.c").uuid
    assert entry["o"] == {
        "applyOps": [
            {"op": "i", "ns": "db.c", "ui": uuid, "o": {"_id": 3}, "o2": {"_id": 3}},
            {
                "op": "u",
                "ns": "db.c",
                "ui": uuid,
                "o": {"$v": 2, "diff": {"u": {"n": 5}}},
                "o2": {"_id": 1},
            },
            {"op": "d", "ns": "db.c", "ui": uuid, "o": {"_id": 2}},
        ]
    }


async def test_it_reads_its_own_writes_and_its_snapshot() -> None:
    one, other = await seeded()
    await one.start()
    assert len((await one.within({"find": "c"}))["cursor"]["firstBatch"]) == 2
    await one.within(set_field(1, n=1))
    await other.run(insert({"_id": 9}))
    await other.run({"delete": "c", "deletes": [{"q": {"_id": 2}, "limit": 1}]})
    found = (await one.within({"find": "c"}))["cursor"]["firstBatch"]
    assert found == [{"_id": 1, "n": 1}, {"_id": 2, "n": 0}]
    assert (await one.within({"find": "c", "filter": {"_id": 9}}))["cursor"]["firstBatch"] == []
    await one.commit()
    assert await one.documents() == [{"_id": 1, "n": 1}, {"_id": 9}]


@pytest.mark.parametrize("committed_first", [True, False])
async def test_two_writers_of_one_document_conflict(committed_first: bool) -> None:
    one, other = await seeded()
    await one.start()
    await other.start()
    await one.within({"find": "c"})
    await other.within(set_field(1, n=1))
    if committed_first:
        await other.commit()
    with pytest.raises(CommandError) as caught:
        await one.within(set_field(1, n=2))
    assert (caught.value.code, caught.value.labels) == (112, {"TransientTransactionError"})
    with pytest.raises(CommandError) as caught:
        await one.commit()
    assert caught.value.code == 251


async def test_a_plain_write_waits_for_the_transaction() -> None:
    one, other = await seeded()
    await one.start()
    await one.within(set_field(1, n=1))
    waiting = asyncio.create_task(other.run(set_field(1, m=2)))
    await asyncio.sleep(0)
    assert not waiting.done()
    await one.commit()
    assert (await waiting)["nModified"] == 1
    assert (await one.documents())[0] == {"_id": 1, "n": 1, "m": 2}


async def test_an_abort_leaves_no_changes() -> None:
    one, _ = await seeded()
    before = one.mongod.oplog.last_ts
    await one.start()
    await one.within(insert({"_id": 3}))
    await one.finish("abortTransaction")
    assert one.mongod.oplog.last_ts == before
    assert len(await one.documents()) == 2
    with pytest.raises(CommandError) as caught:
        await one.within({"find": "c"})
    assert caught.value.code == 251


async def test_duplicates_are_found_in_and_outside_the_transaction() -> None:
    one, _ = await seeded()
    for first, second in (({"_id": 1}, None), ({"_id": 7}, {"_id": 7})):
        await one.start()
        reply = await one.within(insert(first))
        if second is not None:
            reply = await one.within(insert(second))
        assert reply["writeErrors"][0]["code"] == 11000
        with pytest.raises(CommandError, match="aborted"):
            await one.commit()


async def test_count_is_refused_in_a_transaction() -> None:
    one, _ = await seeded()
    await one.start()
    with pytest.raises(CommandError) as caught:
        await one.within({"count": "c"})
    assert caught.value.code == 263


async def test_a_second_commit_succeeds_and_an_unknown_number_fails() -> None:
    one, _ = await seeded()
    await one.start()
    await one.within(insert({"_id": 3}))
    await one.commit()
    await one.commit()
    with pytest.raises(CommandError) as caught:
        await one.run({"commitTransaction": 1, "lsid": SESSION, "txnNumber": 77}, "admin")
    assert caught.value.code == 251


async def test_a_prepared_transaction_logs_prepare_and_commit() -> None:
    one, other = await seeded()
    await one.start()
    await one.within(insert({"_id": 3}))
    prepared = one.mongod.prepare_transaction(SESSION, 1)
    assert [d["_id"] for d in await other.documents()] == [1, 2]
    other.mongod.append_noop({"msg": "in between"})
    committed = one.mongod.commit_transaction(SESSION, 1)
    assert [d["_id"] for d in await other.documents()] == [1, 2, 3]
    prepare, commit = one.entries("c")[-2:]
    assert prepare["o"]["prepare"] is True
    assert prepare["ts"] == prepared
    assert (commit["o"]["commitTransaction"], commit["ts"]) == (1, committed)
    assert commit["prevOpTime"]["ts"] == prepared


async def test_aborting_a_prepared_transaction_logs_it() -> None:
    one, _ = await seeded()
    await one.start()
    await one.within(insert({"_id": 3}))
    one.mongod.prepare_transaction(SESSION, 1)
    one.mongod.abort_transaction(SESSION, 1)
    assert one.entries("c")[-1]["o"] == {"abortTransaction": 1}
    assert len(await one.documents()) == 2


async def test_a_large_transaction_is_a_chain_of_entries() -> None:
    one = Driver()
    await one.run(insert({"_id": 0}))
    await one.start()
    for number in range(1, 5):
        await one.within(insert({"_id": number, "p": "x" * (6 << 20)}))
    await one.commit()
    chain = [entry for entry in one.entries("c") if "applyOps" in entry["o"]]
    assert [entry["o"].get("partialTxn") for entry in chain] == [True, None]
    assert chain[1]["prevOpTime"]["ts"] == chain[0]["ts"]
    assert chain[1]["o"]["count"] == 4
    assert (await one.run({"count": "c"}))["n"] == 5


async def test_a_new_transaction_ends_the_sessions_last_one() -> None:
    one, other = await seeded()
    await one.start()
    await one.within(set_field(1, n=1))
    await one.start()
    await one.within({"find": "c"})
    assert (await other.run(set_field(1, n=2)))["nModified"] == 1


async def test_the_open_transaction_expires() -> None:
    one, other = await seeded(transaction_lifetime=0.01)
    await one.start()
    await one.within(set_field(1, n=1))
    assert (await other.run(set_field(1, n=2)))["nModified"] == 1


async def test_retried_writes_are_applied_once() -> None:
    one, _ = await seeded()
    for _ in range(2):
        reply = await one.retryable(insert({"_id": 5}, {"_id": 6}), 10)
        assert reply["n"] == 2
    assert reply["retriedStmtIds"] == [0, 1]
    change = {"update": "c", "updates": [{"q": {"_id": 5}, "u": {"$inc": {"n": 1}}}]}
    for _ in range(2):
        reply = await one.retryable(change, 11)
        assert (reply["n"], reply["nModified"]) == (1, 1)
    modify = {"findAndModify": "c", "query": {"_id": 5}, "update": {"$inc": {"n": 1}}, "new": True}
    for _ in range(2):
        reply = await one.retryable(modify, 12)
        assert reply["value"] == {"_id": 5, "n": 2}
    assert reply["retriedStmtId"] == 0
    [*_, last] = one.entries("u")
    assert (last["lsid"], last["txnNumber"], last["stmtId"]) == (full_lsid(SESSION), 12, 0)
    with pytest.raises(CommandError) as caught:
        await one.retryable(insert({"_id": 9}), 3)
    assert caught.value.code == 225


async def test_images_of_transactions_are_found_by_position() -> None:
    one = Driver()
    await one.run({"create": "c", "changeStreamPreAndPostImages": {"enabled": True}})
    await one.run(insert({"_id": 1, "n": 0}, {"_id": 2, "n": 0}))
    await one.start()
    await one.within(set_field(1, n=1))
    await one.within(set_field(2, n=1))
    await one.commit()
    mongod = one.mongod
    uuid, ts = mongod.catalog.require("db.c").uuid, mongod.oplog.last_ts
    assert mongod.images(uuid, ts, 0) == ({"_id": 1, "n": 0}, {"_id": 1, "n": 1})
    assert mongod.images(uuid, ts, 1) == ({"_id": 2, "n": 0}, {"_id": 2, "n": 1})
    await one.run(set_field(1, n=2))
    assert mongod.images(uuid, mongod.oplog.last_ts) == ({"_id": 1, "n": 1}, {"_id": 1, "n": 2})
