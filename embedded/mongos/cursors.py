"""Cursors of the embedded mongos, each over a result in memory."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

import bson

from embedded.clients import UserName
from embedded.errors import cursor_not_found
from embedded.storage.bson_values import Document
from shard_client.errors import CommandError
from shard_client.wire.frames import MAX_DOCUMENT_SIZE

FIRST_BATCH = 101
_MOST_CURSORS = 10_000


@dataclass
class _Cursor:
    namespace: str
    documents: deque[Document]
    session: bytes | None
    owner: UserName | None = None
    expiry: asyncio.TimerHandle | None = None


class CursorTable:
    """The cursors of the embedded mongos, each with the rest of its result.

    Args:
        idle_seconds: how long an unused cursor lives.
        random: the source of cursor ids.
    """

    def __init__(self, random: Random, idle_seconds: float = 600.0) -> None:
        self._idle_seconds = idle_seconds
        self._random = random
        self._cursors: OrderedDict[int, _Cursor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cursors)

    def open(
        self,
        namespace: str,
        documents: Iterable[Document],
        *,
        batch_size: int | None,
        session: bytes | None,
        owner: UserName | None = None,
        single_batch: bool = False,
    ) -> Document:
        """Return the first reply, ``{cursor: {firstBatch, id, ns}}``, and keep the rest.

        Args:
            namespace: the cursor's namespace.
            documents: the whole result.
            batch_size: the largest number of documents; ``None`` is the server's default of 101.
            session: the key of the cursor's session.
            owner: the user that opens it.
            single_batch: whether to drop the documents after the first batch.
        """
        rest = deque(documents)
        batch = _take(rest, FIRST_BATCH if batch_size is None else batch_size)
        cursor_id = 0
        if rest and not single_batch:
            cursor_id = self._random.getrandbits(62) + 1
            self._cursors[cursor_id] = _Cursor(namespace, rest, session, owner)
            self._arm(cursor_id)
            if len(self._cursors) > _MOST_CURSORS:
                self._close(next(iter(self._cursors)))
        return {"cursor": {"firstBatch": batch, "id": bson.Int64(cursor_id), "ns": namespace}}

    def owner(self, cursor_id: int) -> UserName | None:
        """Return the user that opened a cursor; None if no user did or there is no such cursor."""
        cursor = self._cursors.get(cursor_id)
        return None if cursor is None else cursor.owner

    def __contains__(self, cursor_id: object) -> bool:
        """Return whether a cursor of this id is open."""
        return cursor_id in self._cursors

    def more(self, cursor_id: int, database: str, collection: str, size: int | None) -> Document:
        """Return the next reply, ``{cursor: {nextBatch, id, ns}}``.

        Raises:
            CommandError: 43 CursorNotFound; 13 Unauthorized for another namespace's cursor.
        """
        cursor = self._cursors.get(cursor_id)
        if cursor is None:
            raise cursor_not_found(cursor_id)
        if f"{database}.{collection}" != cursor.namespace:
            raise CommandError(
                13, f"Requested getMore on namespace '{database}.{collection}', but cursor belongs "
                f"to a different namespace {cursor.namespace}", code_name="Unauthorized",
            )  # fmt: skip
        batch = _take(cursor.documents, size or len(cursor.documents))
        left = cursor_id if cursor.documents else 0
        if left:
            self._arm(cursor_id)
        else:
            self._close(cursor_id)
        return {"cursor": {"nextBatch": batch, "id": bson.Int64(left), "ns": cursor.namespace}}

    def kill(self, cursor_ids: Iterable[int]) -> tuple[list[int], list[int]]:
        """Close cursors; return the ids that existed and those that did not."""
        killed: list[int] = []
        unknown: list[int] = []
        for cursor_id in cursor_ids:
            (killed if cursor_id in self._cursors else unknown).append(cursor_id)
            self._close(cursor_id)
        return killed, unknown

    def end_session(self, session: bytes) -> None:
        """Close the cursors of a session."""
        for cursor_id, cursor in list(self._cursors.items()):
            if cursor.session == session:
                self._close(cursor_id)

    def close(self) -> None:
        """Close all cursors."""
        for cursor_id in list(self._cursors):
            self._close(cursor_id)

    def _arm(self, cursor_id: int) -> None:
        cursor = self._cursors[cursor_id]
        if cursor.expiry is not None:
            cursor.expiry.cancel()
        loop = asyncio.get_running_loop()
        cursor.expiry = loop.call_later(self._idle_seconds, self._close, cursor_id)

    def _close(self, cursor_id: int) -> None:
        cursor = self._cursors.pop(cursor_id, None)
        if cursor is not None and cursor.expiry is not None:
            cursor.expiry.cancel()


def _take(documents: deque[Document], count: int) -> list[Document]:
    """Remove and return up to ``count`` documents, limited to the size of one reply."""
    batch: list[Document] = []
    size = 0
    while documents and len(batch) < count:
        size += len(bson.encode(documents[0]))
        if batch and size > MAX_DOCUMENT_SIZE:
            break
        batch.append(documents.popleft())
    return batch
