"""Changes of a member: each is logged in the oplog first and then applied to the documents.

Source: docs/protocol.md#events (what events need of the oplog).
"""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast

import bson
from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.images import Images, StoredImages
from embedded.logical_clock import LogicalClock, as_ordinal
from embedded.oplog import APPLIED_SEPARATELY, NULL_OP_TIME, Oplog, OplogEntry
from embedded.storage.bson_values import Document
from embedded.storage.collection import Collection, DocumentView
from embedded.transactions import DocumentLocked, Isolation, Transaction
from embedded.write_unit import Operation
from shard_client.wire.frames import MAX_DOCUMENT_SIZE

_TERM = 1
_PART_BYTES = MAX_DOCUMENT_SIZE  # of a transaction, in each of its entries


class Journal:
    """The oplog, the clock that stamps its entries, the images, and transactions' isolation."""

    def __init__(self, clock: LogicalClock, oplog: Oplog, wall: Callable[[], float]) -> None:
        self.clock = clock
        self.oplog = oplog
        self.images = StoredImages()
        self.isolation = Isolation()
        self._wall = wall

    @property
    def position(self) -> int:
        """The ordinal of the last entry."""
        last = self.oplog.last_ts
        return as_ordinal(last) if last is not None else 0

    def log(
        self, fields: dict[str, Any], *, from_migrate: bool = False, at: Timestamp | None = None
    ) -> OplogEntry:
        """Append an entry with ``fields``, stamped with a new cluster time or with ``at``."""
        if at is None:
            at = self.clock.tick()
        else:
            self.clock.advance(at)
        wall = datetime.fromtimestamp(self._wall(), UTC).replace(tzinfo=None)
        fields |= {
            "ts": at,
            "t": _TERM,
            "v": 2,
            "wall": wall.replace(microsecond=wall.microsecond // 1000 * 1000),
        }
        if from_migrate:
            fields["fromMigrate"] = True
        entry = cast(OplogEntry, fields)
        self.oplog.append(entry)
        return entry

    def log_command(
        self,
        database: str,
        o: Document,
        *,
        uuid: Binary | None = None,
        o2: Document | None = None,
        from_migrate: bool = False,
    ) -> OplogEntry:
        """Append a command entry (``c``) on ``database``."""
        fields: dict[str, Any] = {"op": "c", "ns": f"{database}.$cmd"}
        if uuid is not None:
            fields["ui"] = uuid
        fields["o"] = o
        if o2 is not None:
            fields["o2"] = o2
        return self.log(fields, from_migrate=from_migrate)

    def apply(self, operation: Operation, ts: Timestamp, image_ts: Timestamp, index: int) -> None:
        """Apply a logged operation.

        Stores the images, records the old document for open snapshots, and changes the document.
        """
        collection = operation.collection
        if operation.before is not None and collection.keeps_images:
            images = Images(operation.before, operation.after)
            self.images.keep(collection.uuid, image_ts, index, images)
            self.images.forget_through(self.oplog.truncated_through)
        self.isolation.note(collection, operation.key, operation.before, as_ordinal(ts))
        operation.apply()

    def insert_together(self, inserts: list[Operation], session_fields: Document) -> bool:
        """Log and apply inserts, of which as many as fit share an entry, as from 8.0 on.

        Returns False, and does nothing, if one of the documents is there or locked.
        """
        if len({each.key for each in inserts}) < len(inserts) or any(
            each.collection.get(each.key) is not None
            or self.isolation.holder(each.collection, each.key)
            for each in inserts
        ):
            return False
        fields = {"op": "c", "ns": "admin.$cmd", "multiOpType": APPLIED_SEPARATELY}
        following = iter(inserts)
        for part in _parts([operation.entry for operation in inserts]):
            at = self.log({**fields, **session_fields, "o": {"applyOps": part}})["ts"]
            for place, operation in enumerate(islice(following, len(part))):
                self.apply(operation, at, at, place)
        return True

    # Transactions

    def prepare(self, transaction: Transaction) -> Timestamp:
        """Log the transaction as prepared; return the prepare timestamp."""
        entry = self._log_operations(transaction, prepare=True)[-1]
        transaction.state = "prepared"
        transaction.prepared_at = entry["ts"]
        return entry["ts"]

    def commit(self, transaction: Transaction) -> Timestamp:
        """Log and apply the transaction's operations; return the commit's cluster time."""
        if not transaction.operations and transaction.prepared_at is None:
            transaction.committed_at = self.oplog.last_ts or self.clock.time
            transaction.end("committed")
            return transaction.committed_at
        if transaction.prepared_at is None:
            places = self._log_operations(transaction, prepare=False)
            ts = places[-1]["ts"]
        else:
            places = transaction.chain
            ts = self._log_end(transaction)
        transaction.committed_at = ts
        index = iter(
            (entry["ts"], i) for entry in places for i in range(len(entry["o"]["applyOps"]))
        )
        for operation, (image_ts, place) in zip(transaction.operations, index, strict=True):
            self.apply(operation, ts, image_ts, place)
        transaction.end("committed")
        return ts

    def abort(self, transaction: Transaction) -> None:
        """Abort the transaction; log the abort if it was prepared."""
        if transaction.prepared_at is not None:
            fields = self._transaction_fields(transaction, transaction.prepared_at)
            self.log(fields | {"o": {"abortTransaction": 1}})
        transaction.end("aborted")

    def _log_end(self, transaction: Transaction) -> Timestamp:
        fields = self._transaction_fields(transaction, transaction.prepared_at)
        at = self.clock.tick()
        command = {"commitTransaction": 1, "commitTimestamp": at}
        return self.log(fields | {"o": command}, at=at)["ts"]

    @staticmethod
    def _transaction_fields(transaction: Transaction, previous: Timestamp | None) -> dict[str, Any]:
        return {
            "lsid": transaction.lsid,
            "txnNumber": transaction.txn_number,
            "op": "c",
            "ns": "admin.$cmd",
            "prevOpTime": NULL_OP_TIME if previous is None else {"ts": previous, "t": _TERM},
        }

    def _log_operations(self, transaction: Transaction, *, prepare: bool) -> list[OplogEntry]:
        """Log the operations in as many linked entries as their size requires."""
        parts = _parts([operation.entry for operation in transaction.operations])
        previous: Timestamp | None = None
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            o: Document = {"applyOps": part}
            if not last:
                o["partialTxn"] = True
            elif prepare:
                o["prepare"] = True
            if last and len(parts) > 1:
                o["count"] = len(transaction.operations)
            fields = self._transaction_fields(transaction, previous)
            entry = self.log(fields | {"o": o})
            previous = entry["ts"]
            transaction.chain.append(entry)
        return transaction.chain


def _parts(entries: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Split a transaction's operations into parts that each fit into an oplog entry."""
    parts: list[list[dict[str, Any]]] = [[]]
    size = 0
    for entry in entries:
        length = len(bson.encode(entry)) + 16
        if parts[-1] and size + length > _PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(entry)
        size += length
    return parts


class CommittedWrites:
    """The ``WriteUnit`` outside of transactions: each write takes effect immediately.

    ``session_fields``, which may be empty, mark retryable writes in the oplog.
    """

    def __init__(
        self,
        journal: Journal,
        session_fields: Document,
        *,
        from_migrate: bool,
    ) -> None:
        self._journal = journal
        self._from_migrate = from_migrate
        self._session_fields = session_fields

    def view(self, collection: Collection) -> DocumentView:
        """Return the committed state."""
        return collection

    def write(self, operation: Operation, statement: int = 0) -> None:
        """Make a change.

        Raises:
            CommandError: 11000 DuplicateKey.
            DocumentLocked: a transaction has written the document.
        """
        collection, key = operation.collection, operation.key
        holder = self._journal.isolation.holder(collection, key)
        if holder is not None:
            raise DocumentLocked(holder)
        operation.check_insert(collection)
        fields = operation.entry
        if self._session_fields:
            fields = {**self._session_fields, **fields, "stmtId": statement}
        entry = self._journal.log(fields, from_migrate=self._from_migrate)
        self._journal.apply(operation, entry["ts"], entry["ts"], 0)
