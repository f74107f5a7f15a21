"""Locks of transactions: of documents on a member, of namespaces on the embedded mongos."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from embedded.errors import CommandError
from embedded.mongos.cluster_transactions import TransactionTable
from embedded.mongos.namespace_locks import NamespaceLocks
from embedded.transactions import Isolation, Transaction

LSID: dict[str, Any] = {"id": b"session"}


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
