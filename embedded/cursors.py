"""Open cursors of an embedded server.

Source: docs/protocol.md#cursor-replies (batches, CursorNotFound, CursorInUse, killCursors).
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

import bson
from bson.int64 import Int64

from embedded.errors import CommandError, ErrorCode, cursor_not_found, type_mismatch
from embedded.storage.bson_values import Document
from shard_client.wire.frames import MAX_DOCUMENT_SIZE

FIRST_BATCH = 101
MAX_BATCH_BYTES = MAX_DOCUMENT_SIZE
_IDLE_SECONDS = 600.0
_MAX_CURSORS = 10_000


@dataclass(slots=True)
class Batch:
    """The result of one aggregate, find or getMore.

    ``fields`` are further fields of the reply's ``cursor`` (postBatchResumeToken, invalidated).
    ``is_last`` means that the cursor is exhausted and closed.
    """

    documents: list[Any]
    is_last: bool
    fields: Document = field(default_factory=dict)


class OpenCursor(Protocol):
    """A cursor that may have more documents."""

    namespace: str

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        """Return the next batch; wait up to ``max_time`` seconds for data."""


class ListCursor:
    """A cursor over a fixed list of documents.

    With ``unbounded``, for callers inside the process, the size of a batch in bytes is unlimited.
    """

    def __init__(
        self, namespace: str, documents: Iterator[Document], *, unbounded: bool = False
    ) -> None:
        self.namespace = namespace
        self._documents = documents
        self._unbounded = unbounded
        self._held: Document | None = next(documents, None)

    async def next_batch(self, batch_size: int | None, _max_time: float) -> Batch:
        """Return up to ``batch_size`` documents, limited to the size of a reply."""
        batch: list[Document] = []
        size = 0
        while self._held is not None and (batch_size is None or len(batch) < batch_size):
            if not self._unbounded:
                size += len(bson.encode(self._held)) + 16
                if batch and size > MAX_BATCH_BYTES:
                    break
            batch.append(self._held)
            self._held = next(self._documents, None)
        return Batch(batch, self._held is None)


@dataclass(slots=True, eq=False)
class _Entry:
    cursor: OpenCursor
    session: bytes | None
    used_at: float
    running: asyncio.Task[Batch] | None = None


class CursorTable:
    """Cursors by id. Opening a cursor closes those that have been idle for ten minutes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def open(
        self,
        cursor: OpenCursor,
        batch_size: int | None,
        *,
        session: bytes | None = None,
        single: bool = False,
    ) -> Document:
        """Return the reply with a cursor's first batch; keep the cursor if it has more documents.

        ``single`` drops the documents after the first batch.

        Raises:
            CommandError: 8 if 10,000 cursors are open; the cursor's error.
        """
        batch = await cursor.next_batch(batch_size, 0.0)
        number = Int64(0) if batch.is_last or single else self._add(cursor, session)
        return _reply("firstBatch", cursor, batch, number)

    async def get_more(self, command: Document) -> Document:
        """Return the reply to a getMore.

        Raises:
            CommandError: 14 TypeMismatch; see ``next_batch``.
        """
        number, wait = command["getMore"], command.get("maxTimeMS", 1000)
        if not isinstance(number, Int64):
            raise type_mismatch(
                "BSON field 'getMore.getMore' is the wrong type, expected type 'long'"
            )
        cursor, batch = await self.next_batch(number, command.get("batchSize") or None, wait / 1000)
        return _reply("nextBatch", cursor, batch, 0 if batch.is_last else number)

    def kill_cursors(self, numbers: list[Any]) -> Document:
        """Close cursors and return the reply to a killCursors."""
        killed = [number for number in numbers if self.kill(number)]
        return {
            "cursorsKilled": killed,
            "cursorsNotFound": [number for number in numbers if number not in killed],
            "cursorsAlive": [],
            "cursorsUnknown": [],
        }

    def _add(self, cursor: OpenCursor, session: bytes | None) -> Int64:
        now = asyncio.get_running_loop().time()
        self._expire(now)
        number = self._random.randrange(1 << 32, 1 << 63)
        while number in self._entries:
            number = self._random.randrange(1 << 32, 1 << 63)
        self._entries[number] = _Entry(cursor, session, now)
        return Int64(number)

    def _expire(self, now: float) -> None:
        for number, entry in list(self._entries.items()):
            if entry.running is None and now - entry.used_at > _IDLE_SECONDS:
                self.kill(number)
        if len(self._entries) >= _MAX_CURSORS:
            raise CommandError(8, f"too many cursors: {len(self._entries)} are open")

    async def next_batch(
        self, number: int, batch_size: int | None, max_time: float
    ) -> tuple[OpenCursor, Batch]:
        """Return a cursor and its next batch; remove the cursor after its last batch.

        Raises:
            CommandError: CursorNotFound, CursorInUse (143), CursorKilled (237), or the cursor's
                error.
        """
        entry = self._entries.get(number)
        if entry is None:
            raise cursor_not_found(number)
        if entry.running is not None:
            raise CommandError(ErrorCode.CursorInUse, f"cursor id {number} is already in use")
        running = asyncio.ensure_future(entry.cursor.next_batch(batch_size, max_time))
        entry.running = running
        try:
            batch = await running
        except CommandError:
            self._entries.pop(number, None)
            raise
        except asyncio.CancelledError:
            if number not in self._entries:
                raise CommandError(
                    ErrorCode.CursorKilled,
                    "operation was interrupted because a client killed the cursor",
                ) from None
            # The client disconnected during a batch, so the cursor's position is lost.
            del self._entries[number]
            raise
        finally:
            entry.running = None
            entry.used_at = asyncio.get_running_loop().time()
        if batch.is_last:
            self._entries.pop(number, None)
        return entry.cursor, batch

    def kill(self, number: int) -> bool:
        """Close a cursor, even while it waits for data; return whether it existed."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return False
        if entry.running is not None:
            entry.running.cancel()
        return True

    def end_session(self, session: bytes) -> None:
        """Close the cursors of a session."""
        for number, entry in list(self._entries.items()):
            if entry.session == session:
                self.kill(number)

    def close(self) -> None:
        """Close all cursors."""
        for number in list(self._entries):
            self.kill(number)


def _reply(name: str, cursor: OpenCursor, batch: Batch, number: int) -> Document:
    return {
        "cursor": {
            name: batch.documents,
            **batch.fields,
            "id": Int64(number),
            "ns": cursor.namespace,
        }
    }
