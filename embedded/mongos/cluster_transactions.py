"""Transactions over several shards: participants, two-phase commit, abort."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from embedded.errors import (
    CommandError,
    ErrorCode,
    no_such_transaction,
    transaction_started_before,
    transaction_too_old,
    unknown_transaction,
)
from embedded.mongod import Mongod
from embedded.mongos.namespace_locks import NamespaceLocks, names_to_share
from embedded.mongos.shards import Shard
from embedded.sessions import session_key
from embedded.storage.bson_values import Document
from embedded.transactions import LIFETIME_SECONDS

_MOST_SESSIONS = 10_000


@dataclass
class ClusterTransaction:
    """One transaction of one session, on the side of the mongos."""

    lsid: Document
    number: int
    read_concern: Document | None = None
    state: Literal["open", "committed", "aborted"] = "open"
    participants: dict[Shard, bool] = field(default_factory=dict)
    """The participants, the coordinator first, and whether each has written."""
    locked: list[str] = field(default_factory=list)
    """The databases and namespaces on which it holds shared locks."""
    expiry: asyncio.TimerHandle | None = None

    def fields_for(self, shard: Shard) -> Document:
        """Return the session fields of a statement on ``shard``, which becomes a participant."""
        fields: Document = {"lsid": self.lsid, "txnNumber": self.number, "autocommit": False}
        if shard not in self.participants:
            fields["startTransaction"] = True
            if self.read_concern is not None:
                fields["readConcern"] = self.read_concern
            self.participants[shard] = False
        return fields

    def wrote(self, shard: Shard) -> None:
        """Record that ``shard`` received a write."""
        self.participants[shard] = True


class TransactionTable:
    """The latest transaction of each session (docs/protocol.md#events).

    Args:
        locks: the cluster's locks.
    """

    def __init__(self, locks: NamespaceLocks) -> None:
        self._locks = locks
        self._latest: OrderedDict[bytes, ClusterTransaction] = OrderedDict()

    def statement(self, command: Mapping[str, Any]) -> ClusterTransaction | None:
        """Return the transaction of ``command``; begin it if the command starts one.

        Returns None outside of transactions.

        Raises:
            CommandError: 251 NoSuchTransaction if it is unknown; 225 TransactionTooOld; 117 if it
                has already been started; 14 without an ``lsid``.
        """
        if "txnNumber" not in command or command.get("autocommit") is not False:
            return None
        lsid: Any = command.get("lsid")
        number = int(command["txnNumber"])
        latest = self._latest.get(session_key(lsid))
        if latest is not None and number < latest.number:
            raise transaction_too_old(number, latest.number)
        if command.get("startTransaction"):
            return self.begin(lsid, number, command.get("readConcern"))
        if latest is None or latest.number != number:
            raise unknown_transaction(number, latest.number if latest else -1)
        return latest

    def begin(
        self, lsid: Document, number: int, read_concern: Document | None
    ) -> ClusterTransaction:
        """Begin a transaction; abort the session's previous transaction if it is open.

        Raises:
            CommandError: 117 if the transaction has already been started.
        """
        key = session_key(lsid)
        before = self._latest.pop(key, None)
        if before is not None and before.number == number:
            self._latest[key] = before
            raise transaction_started_before(number)
        if before is not None:
            self.abort(before)
        transaction = ClusterTransaction(lsid, number, read_concern)
        transaction.expiry = asyncio.get_running_loop().call_later(
            LIFETIME_SECONDS, self.abort, transaction
        )
        self._latest[key] = transaction
        if len(self._latest) > _MOST_SESSIONS:
            _, oldest = self._latest.popitem(last=False)
            self.abort(oldest)
        return transaction

    async def hold(self, transaction: ClusterTransaction, namespace: str) -> None:
        """Hold shared locks on ``namespace`` and its database until the transaction ends.

        Raises:
            CommandError: 24 LockTimeout; 251 if the transaction ended while it waited.
        """
        for name in names_to_share(namespace):
            if name in transaction.locked:
                continue
            await self._locks.acquire_shared(name)
            if transaction.state != "open":
                self._locks.release_shared(name)
                raise no_such_transaction(
                    f"Transaction {transaction.number} has been {transaction.state}."
                )
            transaction.locked.append(name)

    def commit(self, transaction: ClusterTransaction) -> None:
        """Commit on all participants. Committing again succeeds.

        A single writer commits directly. Several writers are prepared first; then the coordinator
        commits, and after it the others, at later cluster times than the coordinator's.

        Raises:
            CommandError: 251 if the transaction was aborted; a participant's error, after an abort.
        """
        if transaction.state == "committed":
            return
        if transaction.state == "aborted":
            raise no_such_transaction(f"Transaction {transaction.number} has been aborted.")
        readers = [shard for shard, wrote in transaction.participants.items() if not wrote]
        writers = [shard for shard, wrote in transaction.participants.items() if wrote]
        try:
            for shard in readers:
                _commit_on([shard], transaction)
            if len(writers) > 1:
                _prepare_on(writers, transaction)
            _commit_on(writers[:1], transaction)
        except CommandError:
            self.abort(transaction)
            raise
        _commit_on(writers[1:], transaction)
        self._end(transaction, "committed")

    def abort(self, transaction: ClusterTransaction) -> None:
        """Abort on all participants; does nothing if the transaction has ended."""
        if transaction.state != "open":
            return
        for shard in transaction.participants:
            shard.adopt_time()
            try:
                shard.mongod.abort_transaction(transaction.lsid, transaction.number)
            except CommandError as error:
                if error.code != ErrorCode.NoSuchTransaction:  # it may have aborted by itself
                    raise
            shard.report_time()
        self._end(transaction, "aborted")

    def end_session(self, lsid: Mapping[str, Any]) -> None:
        """Abort the session's open transaction and forget the session."""
        transaction = self._latest.pop(session_key(lsid), None)
        if transaction is not None:
            self.abort(transaction)

    def close(self) -> None:
        """Abort all open transactions."""
        for transaction in self._latest.values():
            self.abort(transaction)

    def _end(self, transaction: ClusterTransaction, state: Literal["committed", "aborted"]) -> None:
        transaction.state = state
        if transaction.expiry is not None:
            transaction.expiry.cancel()
        for name in transaction.locked:
            self._locks.release_shared(name)
        transaction.locked.clear()


def _prepare_on(shards: list[Shard], transaction: ClusterTransaction) -> None:
    _on_each(shards, lambda each: each.prepare_transaction(transaction.lsid, transaction.number))


def _commit_on(shards: list[Shard], transaction: ClusterTransaction) -> None:
    _on_each(shards, lambda each: each.commit_transaction(transaction.lsid, transaction.number))


def _on_each(shards: list[Shard], step: Callable[[Mongod], object]) -> None:
    """Run a step on each shard; no shard starts at the time of another's step."""
    for shard in shards:
        shard.adopt_time()
    for shard in shards:
        step(shard.mongod)
    for shard in shards:
        shard.report_time()
