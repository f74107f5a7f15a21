"""Locks of transactions: of documents on a member, of namespaces on the embedded mongos."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from embedded.client import Client
from embedded.errors import CommandError
from embedded.mongod import Mongod
from embedded.mongos.cluster_transactions import TransactionTable
from embedded.mongos.namespace_locks import NamespaceLocks
from embedded.transactions import Isolation, Transaction

LSID: dict[str, Any] = {"id": b"session"}
STATEMENT = {"lsid": LSID, "txnNumber": 1, "autocommit": False}
"""The fields of a statement in a transaction."""


async def run(mongod: Mongod, command: dict[str, Any], database: str = "db") -> Any:
    reply = await mongod.run_command(database, command, Client())
    assert reply["ok"] == 1, reply
    return reply


def test_a_refused_lock_is_not_kept() -> None:
    isolation, collection = Isolation(), SimpleNamespace(uuid=b"uuid")
    idle, late = (Transaction(LSID, n, 1, isolation) for n in (1, 2))
    isolation.open |= {idle, late}
    isolation.note(collection, 5, None, at=2)  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="WriteConflict"):
        isolation.lock(collection, 5, late)  # type: ignore[arg-type]
    isolation.close(late)
    assert isolation.holder(collection, 5) is None  # type: ignore[arg-type]


async def test_a_transaction_that_ends_while_it_waits_holds_no_lock() -> None:
    locks = NamespaceLocks(timeout=5)
    table = TransactionTable(locks)
    transaction = table.begin(LSID, 1, None)
    async with locks.exclusive("shop.orders"):
        waiting = asyncio.create_task(table.hold(transaction, "shop.orders"))
        await asyncio.sleep(0)
        table.abort(transaction)
    with pytest.raises(CommandError, match="has been aborted"):
        await waiting
    assert not locks.held


async def test_an_upsert_of_many_waits_for_a_transaction_that_holds_its_id() -> None:
    mongod = Mongod("shard0")
    insert = {"insert": "c", "documents": [{"_id": 1}], "startTransaction": True}
    await run(mongod, insert | STATEMENT)
    upsert = {"q": {"_id": 1}, "u": {"$set": {"v": 1}}, "multi": True, "upsert": True}
    waiting = asyncio.create_task(run(mongod, {"update": "c", "updates": [upsert]}))
    await asyncio.sleep(0)
    await run(mongod, {"commitTransaction": 1} | STATEMENT, "admin")
    reply = await waiting
    assert (reply["n"], reply["nModified"]) == (1, 1)


async def test_a_statement_whose_client_leaves_aborts_its_transaction() -> None:
    mongod = Mongod("shard0")
    insert = {"insert": "c", "documents": [{"_id": n} for n in range(300)]}
    statement = insert | {"startTransaction": True} | STATEMENT
    inserting = asyncio.create_task(run(mongod, statement))
    await asyncio.sleep(0)
    inserting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await inserting
    async with asyncio.timeout(10):  # a transaction lives for a minute
        assert (await run(mongod, insert))["n"] == 300
