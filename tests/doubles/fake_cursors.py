"""Merged cursors without a cluster, for tests of the layers above them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any

import bson
from bson.timestamp import Timestamp

from router.counters.loads import StreamLoads
from router.cursors.cursor import Owner
from router.limits.cursor_admission import Admission
from router.limits.memory import Memory
from router.privileges import User
from router.request.stream_request import StreamRequest
from router.stream.readers.log_reader import Batch
from router.stream_settings import StreamSettings
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError
from shard_client.wire.connection import Address
from shard_client.wire.connection_pool import PoolCounts

TOKEN = bson.encode({"_data": "826B00045C000000012B0229296E04"})


def event(number: int, size: int = 10) -> bytes:
    token = {"_data": f"826B00045C{number:08X}2B022C0100296E04"}
    return bson.encode({"_id": token, "n": number, "pad": "x" * size})


class FakeCursor:
    """A cursor whose events come from the test."""

    def __init__(self, cursor_id: int, namespace: str, owner: Owner) -> None:
        self.cursor_id, self.namespace, self.owner = cursor_id, namespace, owner
        self.api = "{}"
        self.events: list[bytes] = []
        self.ended = False
        self.in_use = False
        self.waiting = asyncio.Event()
        self._more = asyncio.Event()

    def put(self, *events: bytes) -> None:
        self.events.extend(events)
        self._more.set()

    def end(self) -> None:
        self.ended = True
        self._more.set()

    close = end

    async def next_batch(self, batch_size: int | None, max_time: float) -> Batch:
        if not self.events and not self.ended:
            self.waiting.set()
            try:
                async with asyncio.timeout(max_time):
                    await self._more.wait()
            except TimeoutError:
                pass
        self._more.clear()
        count = batch_size or len(self.events)
        events, self.events = self.events[:count], self.events[count:]
        closed = self.ended and not self.events
        return Batch(events, sum(map(len, events)), TOKEN, closed)


class FakeCursors:
    """Replaces CursorRegistry; ``opened`` has the requests, ``cursors`` the open cursors."""

    def __init__(self) -> None:
        self.clock = ClusterClock()
        self.clock.advance(
            {
                "clusterTime": Timestamp(1795163230, 127),
                "signature": {"hash": b"\0" * 20, "keyId": bson.Int64(0)},
            }
        )
        self.opened: list[StreamRequest] = []
        self.cursors: dict[int, FakeCursor] = {}
        self.first: list[bytes] = []
        self.new_id: Callable[[], int] = count(2**62 + 1).__next__
        self.loads = StreamLoads()
        self.described: list[dict[str, Any]] = []
        self.memory = Memory(StreamSettings().total_buffer_bytes)
        self.admission = Admission(StreamSettings(), self.memory)
        self.streams = SimpleNamespace(
            moves_to_shared=0,
            moves_to_own=0,
            admission=self.admission,
            resources=SimpleNamespace(loads=self.loads, memory=self.memory),
        )
        self.place = Timestamp(1795163220, 1)
        self.departed: Timestamp | None = None
        self.connections: dict[Address, PoolCounts] = {}
        self.pool = SimpleNamespace(counts=self.connections)

    async def open(
        self,
        request: StreamRequest,
        owner: Owner,
        *,
        user: User | None = None,
        api: str = "{}",
        request_bytes: int = 0,
    ) -> tuple[FakeCursor, Batch]:
        self.opened.append(request)
        cursor = FakeCursor(self.new_id(), request.namespace, owner)
        cursor.api = api
        self.cursors[cursor.cursor_id] = cursor
        return cursor, Batch(self.first, sum(map(len, self.first)), TOKEN, closed=False)

    @contextmanager
    def checkout(self, cursor_id: int, owner: Owner) -> Iterator[FakeCursor]:
        cursor = self.cursors.get(cursor_id)
        if cursor is None:
            raise CommandError(43, f"Cursor not found (id: {cursor_id}).")
        if cursor.in_use:
            raise CommandError(143, f"Cursor already in use (id: {cursor_id}).")
        cursor.in_use = True
        try:
            yield cursor
        except BaseException:
            self.cursors.pop(cursor_id, None)
            raise
        finally:
            cursor.in_use = False
        if cursor.ended and not cursor.events:
            self.cursors.pop(cursor_id, None)

    def __contains__(self, cursor_id: int) -> bool:
        return cursor_id in self.cursors

    def __len__(self) -> int:
        return len(self.cursors)

    def describe_streams(self) -> Iterator[dict[str, Any]]:
        yield from self.described

    def describe_cursors(self, most: int, wall: float) -> list[dict[str, Any]]:
        return [
            {
                "stream": 3,
                "namespace": each.namespace,
                "client": "127.0.0.1:5 app",
                "behindSeconds": 0.0,
                "idleSeconds": 0.0,
                "busy": each.in_use,
            }
            for each in list(self.cursors.values())[:most]
        ]

    @property
    def places(self) -> dict[str, Timestamp | None]:
        return {"cursor": self.place if self.cursors else None, "departed": self.departed}

    def has_another_users(self, cursor_ids: Iterable[int], owner: Owner) -> bool:
        return False

    def kill(self, cursor_ids: Iterable[int]) -> tuple[list[int], list[int]]:
        killed: list[int] = []
        not_found: list[int] = []
        for cursor_id in cursor_ids:
            gone = self.cursors.pop(cursor_id, None)
            (not_found if gone is None else killed).append(cursor_id)
        return killed, not_found

    def end_sessions(self, *_: Any, **_options: Any) -> None:
        """Do nothing: these cursors have no sessions."""
