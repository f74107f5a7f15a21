"""The oplog: what happened on one member, in order, bounded."""

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

NULL_OP_TIME: dict[str, Any] = {"ts": Timestamp(0, 0), "t": -1}
"""The ``prevOpTime`` of a transaction's first entry."""


_MAX_ENTRY_BYTES = MAX_REPLY_DOCUMENT_SIZE


class OplogEntry(TypedDict, total=False):
    """One entry, in MongoDB's own format (docs/protocol.md, section 5).

    Always there: ``op`` (i, u, d, c, n), ``ns``, ``o``, ``ts``, ``t``, ``v`` (2), ``wall``.

    - i: ``o`` the document, ``o2`` its document key (shard key first, then ``_id``).
    - u: ``o2`` the document key; ``o`` the whole new document (a replacement) or
      ``{"$v": 2, "diff": {...}}`` (``storage.diff``).
    - d: ``o`` the document key.
    - c: ``ns`` is ``db.$cmd``, ``ui`` the collection's UUID, ``o`` one of
      ``{create: coll, <options>, idIndex}``; ``{createIndexes: coll, v, key, name, ...}`` (one
      entry for each index on an empty collection); ``{commitIndexBuild: coll, indexBuildUUID,
      indexes: [...]}`` (all indexes of a command, collection not empty); ``{dropIndexes: coll,
      index: name}`` with ``o2`` the index's specification; ``{collMod: coll, ...}`` with ``o2``
      ``{collectionOptions_old: {..., uuid}}``; ``{renameCollection: ns, to: ns, stayTemp,
      dropTarget?: uuid}``; ``{drop: coll}`` with ``o2`` ``{numRecords}``; ``{dropDatabase: 1}``
      (after a drop entry for each collection).
    - A view is an insert into, or delete from, ``db.system.views``; ``_id`` is the namespace.
    - A transaction is a c on ``admin.$cmd`` with ``lsid`` (id and uid), ``txnNumber``,
      ``prevOpTime`` and ``o`` ``{applyOps: [{op, ns, ui, o, o2?}, ...]}``; when large, a chain of
      such entries linked by ``prevOpTime``, all but the last with ``partialTxn: true``, the last
      with ``count``. Over several shards: ``{applyOps, prepare: true}`` and later
      ``{commitTransaction: 1, commitTimestamp}`` whose ``prevOpTime`` is the prepare entry's, or
      ``{abortTransaction: 1}``. The events' cluster time is the ``ts`` of the entry that commits.
    - n: a no-op; ``o`` is a message, ``o2`` may describe an event (shardCollection and kin).

    ``lsid``, ``txnNumber`` and ``stmtId`` on an i, u or d mean a retryable write, which change
    streams do not show. ``fromMigrate: true`` marks a chunk migration's entry.
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
    """Entries in order of ``ts``; the oldest go when there are too many, or too many bytes.

    ``since`` and ``wait_beyond`` are what a change stream needs; ``truncated_through`` tells it
    whether its starting point is still covered. Up to an eighth more than ``max_entries`` or
    ``max_bytes`` (of BSON) may be held, so that dropping is rare.
    """

    def __init__(self, max_entries: int = 200_000, max_bytes: int = 256 * 1024 * 1024) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
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
        """The ``ts`` of the oldest entry that is left; None before the first one."""
        return self._entries[0]["ts"] if self._entries else None

    @property
    def last_ts(self) -> Timestamp | None:
        """The ``ts`` of the newest entry; None before the first one."""
        return self._entries[-1]["ts"] if self._entries else None

    @property
    def truncated_through(self) -> Timestamp | None:
        """The ``ts`` of the newest entry that was dropped for room; None when none was."""
        return as_timestamp(self._truncated_through) if self._truncated_through else None

    def append(self, entry: OplogEntry) -> None:
        """Add ``entry``; its ``ts`` must be larger than all before.

        Raises ValueError when it is not, and BSONObjectTooLarge for an entry above 16 MiB and the
        little that servers allow for what surrounds a document.
        """
        size = len(bson.encode(entry))
        if size > _MAX_ENTRY_BYTES:
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
            or self._bytes > self._max_bytes + self._max_bytes // 8
        ):
            self._truncate()
        if self._grown is not None:
            if not self._grown.done():
                self._grown.set_result(None)
            self._grown = None

    def _truncate(self) -> None:
        """Drop the oldest entries, so that neither limit is passed; the newest always stays."""
        count = max(0, len(self._entries) - self._max_entries)
        left = self._bytes - sum(self._sizes[:count])
        while left > self._max_bytes and count < len(self._entries) - 1:
            left -= self._sizes[count]
            count += 1
        if not count:
            return
        self._truncated_through = self._ordinals[count - 1]
        self._bytes = left
        del self._entries[:count]
        del self._ordinals[:count]
        del self._sizes[:count]

    def since(self, ts: Timestamp, *, inclusive: bool = False) -> Iterator[OplogEntry]:
        """Yield the entries after ``ts`` (``inclusive``: from ``ts`` on), also later appended ones.

        The iterator stays valid while entries are appended or dropped.
        """
        position = as_ordinal(ts) - (1 if inclusive else 0)
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
        """Return the entry with exactly this ``ts`` (a ``prevOpTime`` leads here)."""
        index = bisect_right(self._ordinals, as_ordinal(ts)) - 1
        if index >= 0 and self._ordinals[index] == as_ordinal(ts):
            return self._entries[index]
        return None

    async def wait_beyond(self, ts: Timestamp, timeout: float) -> bool:
        """Wait until there is an entry after ``ts``; False when ``timeout`` seconds pass first."""
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
