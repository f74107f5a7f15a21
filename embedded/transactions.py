"""Multi-document transactions of one member: snapshot, write set, locks.

Source: docs/protocol.md#events (transactions).
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

from bson.timestamp import Timestamp

from embedded.errors import write_conflict
from embedded.oplog import OplogEntry
from embedded.storage.bson_values import MISSING, Document, IdKey, id_key
from embedded.storage.collection import Collection, DocumentView
from embedded.write_unit import Operation

LIFETIME_SECONDS = 60.0
"""Seconds after which an open transaction is aborted."""

State = Literal["in progress", "prepared", "committed", "aborted"]
Change = tuple[int, IdKey, Document | None]


class DocumentLocked(Exception):  # noqa: N818 (a signal to wait, no error of the client's)
    """A write outside of transactions hit a document that ``transaction`` has written."""

    def __init__(self, transaction: "Transaction") -> None:
        super().__init__("locked by a transaction")
        self.transaction = transaction


class Isolation:
    """The open transactions' locks on documents, and the changes committed since they began."""

    def __init__(self) -> None:
        self.open: set[Transaction] = set()
        self._locks: dict[tuple[bytes, IdKey], Transaction] = {}
        self._history: dict[bytes, list[Change]] = {}

    def holder(self, collection: Collection, key: IdKey) -> "Transaction | None":
        """Return the open transaction that has written this document, or None."""
        if not self._locks:
            return None
        return self._locks.get((collection.uuid, key))

    def lock(self, collection: Collection, key: IdKey, transaction: "Transaction") -> None:
        """Lock a document for ``transaction``.

        Raises:
            CommandError: 112 WriteConflict if another transaction has locked the document, or if it
                has changed since the snapshot.
        """
        if self._locks.get((collection.uuid, key), transaction) is not transaction:
            raise write_conflict()
        for ordinal, changed, _ in self._history.get(collection.uuid, ()):
            if ordinal > transaction.snapshot and changed == key:
                raise write_conflict()
        self._locks[collection.uuid, key] = transaction

    def note(self, collection: Collection, key: IdKey, before: Document | None, at: int) -> None:
        """Record a committed change while there are open snapshots."""
        if self.open:
            self._history.setdefault(collection.uuid, []).append((at, key, before))

    def since(self, collection: Collection, snapshot: int) -> dict[IdKey, Document | None]:
        """Return the old state of each document that has changed after ``snapshot``."""
        past: dict[IdKey, Document | None] = {}
        for ordinal, key, before in self._history.get(collection.uuid, ()):
            if ordinal > snapshot:
                past.setdefault(key, before)
        return past

    def close(self, transaction: "Transaction") -> None:
        """Release the transaction's locks and snapshot."""
        self.open.discard(transaction)
        for operation in transaction.operations:
            key = (operation.collection.uuid, operation.key)
            if self._locks.get(key) is transaction:
                del self._locks[key]
        if not self.open:
            self._locks.clear()
            self._history.clear()


class Transaction:
    """One open transaction; a ``WriteUnit``.

    ``snapshot`` is the ordinal of the last oplog entry that it sees. ``operations`` are its writes
    in order, which the member applies at the commit. ``chain`` are its oplog entries.
    """

    def __init__(
        self, lsid: dict[str, Any], txn_number: int, snapshot: int, isolation: Isolation
    ) -> None:
        self.lsid = lsid
        self.txn_number = txn_number
        self.snapshot = snapshot
        self.state: State = "in progress"
        self.operations: list[Operation] = []
        self.chain: list[OplogEntry] = []
        self.prepared_at: Timestamp | None = None
        self.committed_at: Timestamp | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self._isolation = isolation
        self._written: dict[bytes, dict[IdKey, Document | None]] = {}
        self._ended = asyncio.Event()
        isolation.open.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the transaction may still commit or abort."""
        return self.state in ("in progress", "prepared")

    def end(self, state: State) -> None:
        """Set the final state, release all locks and wake the waiters."""
        self.state = state
        self._isolation.close(self)
        if self.expiry is not None:
            self.expiry.cancel()
        self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until the transaction has committed or aborted."""
        await self._ended.wait()

    def view(self, collection: Collection) -> DocumentView:
        """Return the snapshot with this transaction's own writes."""
        return _Snapshot(
            collection,
            self._isolation.since(collection, self.snapshot),
            self._written.get(collection.uuid, {}),
        )

    def write(self, operation: Operation, _statement: int = 0) -> None:
        """Add a change.

        Raises:
            CommandError: 11000 DuplicateKey or 112 WriteConflict.
        """
        collection, key = operation.collection, operation.key
        operation.check_insert(self.view(collection))
        self._isolation.lock(collection, key, self)
        self.operations.append(operation)
        self._written.setdefault(collection.uuid, {})[key] = operation.after


class _Snapshot:
    """A collection in a transaction's snapshot, with its own writes."""

    def __init__(
        self,
        collection: Collection,
        past: dict[IdKey, Document | None],
        written: dict[IdKey, Document | None],
    ) -> None:
        self._collection = collection
        self._changed = {**past, **written}

    def get(self, key: IdKey) -> Document | None:
        document = self._changed.get(key, MISSING)
        if document is MISSING:
            return self._collection.get(key)
        result: Document | None = document
        return result

    def documents(self) -> Iterator[Document]:
        if not self._changed:
            return self._collection.documents()
        return iter(list(self._merged()))

    def _merged(self) -> Iterator[Document]:
        rest = dict(self._changed)
        for document in self._collection.documents():
            seen = rest.pop(id_key(document["_id"]), document) if rest else document
            if seen is not None:
                yield seen
        yield from (document for document in rest.values() if document is not None)
