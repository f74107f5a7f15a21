"""A remote cursor on a scripted member, and everything that it reports."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from bson import Timestamp

from router.counters.loads import MemberLoad
from router.request.shard_commands import progress_command
from shard_client.bson.resume_token import cluster_time_of
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError
from shard_client.remote_cursor.cursor_reaper import CursorReaper
from shard_client.remote_cursor.cursor_reply import CursorBatch, token_key
from shard_client.remote_cursor.open_cursor import OpenCursor
from shard_client.remote_cursor.progress_cursor import Probing
from shard_client.remote_cursor.remote_cursor import RemoteCursor
from shard_client.remote_cursor.remote_settings import RemoteSettings
from shard_client.wire.connection import Address, Connection
from shard_client.wire.connection_pool import ConnectionPool
from tests.doubles.scripted_member import ScriptedMember, event_token
from tests.harness.until import PATIENCE, until

SETTINGS = RemoteSettings(
    await_unknown=0.005,
    connect_timeout=PATIENCE,
    reply_timeout=PATIENCE,
    failure_timeout=PATIENCE,
    close_timeout=PATIENCE,
    backoff_first=0.005,
)
"""Nothing times out on a busy machine; tests of a time limit set it."""


@dataclass
class Reader:
    """A cursor on a member and everything that it reports."""

    member: ScriptedMember
    settings: RemoteSettings = SETTINGS
    batches: list[CursorBatch] = field(default_factory=list)
    failures: list[CommandError] = field(default_factory=list)
    distrusted: list[Address] = field(default_factory=list)
    asked_ahead: list[bool] = field(default_factory=list)
    connection: Connection | None = None
    fragments: bool = False
    sent: MemberLoad = field(default_factory=MemberLoad)

    def __post_init__(self) -> None:
        self.clock = ClusterClock()
        self.pool = ConnectionPool()
        self.cursor_reaper = CursorReaper(self.pool.borrow, first_pause=0.01)
        self.cursor = RemoteCursor(
            "s",
            dialer=self,
            opening=self.opening,
            clock=self.clock,
            settings=self.settings,
            sent=self.sent,
            outlasts=lambda: False,
            probing=Probing(
                opening=lambda pbrt: progress_command(*self.opening(pbrt), pbrt),
                fragments=self.fragments,
            ),
        )

    async def connect(self, timeout: float) -> Connection:
        address = ("127.0.0.1", self.member.port)
        self.connection = await self.pool.take(address, timeout, greet=True)
        return self.connection

    async def connect_to(self, address: Address, timeout: float) -> Connection:
        self.connection = await self.pool.take(address, timeout)
        return self.connection

    def distrust(self, address: Address) -> None:
        self.distrusted.append(address)

    def kill_later(self, cursor: OpenCursor) -> None:
        self.cursor_reaper.add(cursor)

    def brought(self, batch: CursorBatch) -> None:
        self.batches.append(batch)
        self.asked_ahead.append(self.connection is not None and self.connection.busy)

    def opening(self, pbrt: bytes | None) -> tuple[str, dict[str, Any]]:
        start: dict[str, Any] = {"startAtOperationTime": Timestamp(100, 1)}
        if pbrt is not None:
            start = {"resumeAfter": {"_data": token_key(pbrt).decode()}}
        return "db", {"aggregate": 1, "pipeline": [{"$changeStream": start}], "cursor": {}}

    def start(self) -> None:
        """Read the cursor in the background."""
        self.reading = asyncio.create_task(self.read())

    async def read(self) -> None:
        """Read the cursor until it is closed, ends or fails."""
        try:
            while (batch := await self.cursor.read()) is not None:
                self.brought(batch)
        except CommandError as error:
            self.failures.append(error)

    def probe(self, seconds: float) -> None:
        """Ask the progress cursor in the background."""
        self.probing = asyncio.create_task(self.ask(seconds))

    async def ask(self, seconds: float) -> None:
        """Ask the progress cursor."""
        if (batch := await self.cursor.probe_progress(seconds)) is not None:
            self.brought(batch)

    async def start_waiting(self) -> None:
        """Start the cursor and wait until its first getMore waits for events."""
        self.start()
        await until(lambda: self.member.waiting == 1)

    async def probed(self) -> None:
        """Ask the progress cursor, and wait for what it reports."""
        heard = len(self.batches)
        self.probe(0.001)
        await until(lambda: len(self.batches) > heard)

    async def close(self) -> None:
        """Close the cursor, which leaves none on the member."""
        self.member.stop_waiting()
        await self.cursor.close()
        await until(lambda: not self.member.cursors)

    def has(self, count: int) -> bool:
        return len(self.keys) == count

    @property
    def keys(self) -> list[bytes]:
        return [key for batch in self.batches for key, _ in batch.events]

    @property
    def watermark(self) -> Timestamp:
        return cluster_time_of(self.batches[-1].watermark.key)

    def has_watermark(self, second: int) -> bool:
        return self.watermark == Timestamp(second, 1)


def keys(*seconds: int) -> list[bytes]:
    return [event_token(Timestamp(second, 1)).encode() for second in seconds]
