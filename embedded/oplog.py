"""The oplog: all changes of one member, in order and bounded."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from datetime import datetime
from typing import Any, TypedDict

import bson
from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.errors import object_too_large
from embedded.logical_clock import as_ordinal, as_timestamp
from shard_client.wire.frames import MAX_REPLY_DOCUMENT_SIZE

_MAX_BYTES = 256 * 1024 * 1024

APPLIED_SEPARATELY = 1
"""``multiOpType`` of operations in one entry that are no transaction."""

NULL_OP_TIME: dict[str, Any] = {"ts": Timestamp(0, 0), "t": -1}
"""The ``prevOpTime`` of a transaction's first entry."""


class OplogEntry(TypedDict, total=False):
    """One entry, in MongoDB's own format (docs/protocol.md#events).

    Always present: ``op`` (i, u, d, c, n), ``ns``, ``o``, ``ts``, ``t``, ``v`` (2), ``wall``.

    - i: ``o`` is the document, ``o2`` its document key (shard key first, then ``_id``).
    - u: ``o2`` is the document key; ``o`` is the whole new document (a replacement) or ``{"$v": 2,
      "diff": {...}}`` (``storage.diff``).
    - d: ``o`` is the document key.
    - c: ``ns`` is ``db.$cmd``, ``ui`` the collection's UUID, ``o`` one of ``{create: coll,
      <options>, idIndex}``; ``{createIndexes: coll, v, key, name, ...}`` (one entry for each index
      on an empty collection); ``{commitIndexBuild: coll, indexBuildUUID, indexes: [...]}`` (all
      indexes of a command, if the collection is not empty); ``{dropIndexes: coll, index: name}``
      with ``o2`` the index's specification; ``{collMod: coll, ...}`` with ``o2``
      ``{collectionOptions_old: {..., uuid}}``; ``{renameCollection: ns, to: ns, stayTemp,
      dropTarget?: uuid}``; ``{drop: coll}`` with ``o2`` ``{numRecords}``; ``{dropDatabase: 1}``
      (after a drop entry for each collection).
    - A view is an insert into, or delete from, ``db.system.views``; ``_id`` is the namespace.
    - A transaction is a c on ``admin.$cmd`` with ``lsid`` (id and uid), ``txnNumber``,
      ``prevOpTime`` and ``o`` ``{applyOps: [{op, ns, ui, o, o2?}, ...]}``. A large one is a chain
      of such entries linked by ``prevOpTime``, all but the last with ``partialTxn: true``, the last
      with ``count``. On several shards it is ``{applyOps, prepare: true}`` and later
      ``{commitTransaction: 1, commitTimestamp}`` whose ``prevOpTime`` is the prepare entry's, or
      ``{abortTransaction: 1}``. The events' cluster time is the ``ts`` of the entry that commits.
    - From 8.0 on, documents that a command inserts together are an ``applyOps`` of ``multiOpType``
      1, with a session if the write is retryable; it is no transaction.
    - An ``applyOps`` on ``db.$cmd`` without ``txnNumber`` is a plain command, with which 6.0 ends
      the removal of a shard; change streams do not show its operations.
    - n: a no-op; ``o`` is a message, ``o2`` may describe an event (such as shardCollection).

    ``lsid``, ``txnNumber`` and ``stmtId`` on an i, u or d mean a retryable write; change streams do
    not show these fields. ``fromMigrate: true`` marks a chunk migration's entry.
    """

    lsid: dict[str, Any]
    txnNumber: int
    op: str
    ns: str
    ui: Binary
    o: dict[str, Any]
    o2: dict[str, Any]
    stmtId: int
    ts: Timestamp
    t: int
    v: int
    wall: datetime
    fromMigrate: bool
    prevOpTime: dict[str, Any]


class Oplog:
    """Entries in order of ``ts``; the oldest are dropped at the limits of number and size.

    Change streams use ``since`` and ``wait_beyond``, and ``truncated_through`` to check that their
    starting point is still covered. The oplog may hold up to an eighth more than ``max_entries``
    entries or ``_MAX_BYTES`` bytes of BSON, so that it rarely drops entries.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._bytes = 0
        self._sizes: list[int] = []
        self._entries: list[OplogEntry] = []
        self._ordinals: list[int] = []
        self._truncated_through = 0
        self._grown: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first_ts(self) -> Timestamp | None:
        """The ``ts`` of the oldest stored entry; None if the oplog is empty."""
        return self._entries[0]["ts"] if self._entries else None

    @property
    def last_ts(self) -> Timestamp | None:
        """The ``ts`` of the newest entry; None if the oplog is empty."""
        return self._entries[-1]["ts"] if self._entries else None

    @property
    def truncated_through(self) -> Timestamp | None:
        """The ``ts`` of the newest dropped entry; None if no entry has been dropped."""
        return as_timestamp(self._truncated_through) if self._truncated_through else None

    def append(self, entry: OplogEntry) -> None:
        """Add ``entry``; its ``ts`` must be greater than all earlier ones.

        Raises:
            ValueError: its ``ts`` is not greater.
            CommandError: BSONObjectTooLarge if it exceeds 16 MiB plus the overhead that servers
                allow.
        """
        size = len(bson.encode(entry))
        if size > MAX_REPLY_DOCUMENT_SIZE:
            raise object_too_large(size)
        ordinal = as_ordinal(entry["ts"])
        if self._ordinals and ordinal <= self._ordinals[-1]:
            raise ValueError(f"oplog entry {entry['ts']} is not newer than {self.last_ts}")
        self._entries.append(entry)
        self._ordinals.append(ordinal)
        self._sizes.append(size)
        self._bytes += size
        if (
            len(self._entries) > self._max_entries + self._max_entries // 8
            or self._bytes > _MAX_BYTES + _MAX_BYTES // 8
        ):
            self._truncate()
        if self._grown is not None:
            if not self._grown.done():
                self._grown.set_result(None)
            self._grown = None

    def _truncate(self) -> None:
        """Drop the oldest entries until both limits hold; always keep the newest entry."""
        count = max(0, len(self._entries) - self._max_entries)
        remaining = self._bytes - sum(self._sizes[:count])
        while remaining > _MAX_BYTES and count < len(self._entries) - 1:
            remaining -= self._sizes[count]
            count += 1
        if not count:
            return
        self._truncated_through = self._ordinals[count - 1]
        self._bytes = remaining
        del self._entries[:count]
        del self._ordinals[:count]
        del self._sizes[:count]

    def since(self, ts: Timestamp) -> Iterator[OplogEntry]:
        """Yield the entries after ``ts``, also later ones.

        The iterator stays valid while entries are appended or dropped.
        """
        position = as_ordinal(ts)
        index = bisect_right(self._ordinals, position)
        while index < len(self._entries):
            if self._ordinals[index] <= position or (
                index and self._ordinals[index - 1] > position
            ):
                index = bisect_right(self._ordinals, position)
                continue
            entry = self._entries[index]
            position = self._ordinals[index]
            index += 1
            yield entry

    def at(self, ts: Timestamp) -> OplogEntry | None:
        """Return the entry with exactly this ``ts``, for example of a ``prevOpTime``, or None."""
        index = bisect_right(self._ordinals, as_ordinal(ts)) - 1
        if index >= 0 and self._ordinals[index] == as_ordinal(ts):
            return self._entries[index]
        return None

    async def wait_beyond(self, ts: Timestamp, timeout: float) -> bool:
        """Wait for an entry after ``ts``; return False after ``timeout`` seconds without one."""
        ordinal = as_ordinal(ts)
        try:
            async with asyncio.timeout(timeout):
                while not self._ordinals or self._ordinals[-1] <= ordinal:
                    if self._grown is None:
                        self._grown = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._grown)
        except TimeoutError:
            return False
        return True
