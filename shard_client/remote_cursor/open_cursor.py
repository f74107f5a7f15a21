"""A cursor that is open on a server, and the commands that read or kill it."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import bson
from bson.int64 import Int64

from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Address, Connection

Borrow = Callable[[Address, float], AbstractAsyncContextManager[Connection]]
"""Provides an idle connection to the member at an address; the seconds limit connecting. Entering
raises CommandError, NetworkError."""


@dataclass(frozen=True, slots=True)
class OpenCursor:
    """The cursor ``cursor_id`` of ``namespace`` ("db.collection") on the member at ``address``."""

    address: Address
    namespace: str
    cursor_id: int

    def get_more(self, batch_size: int, await_ms: int) -> bytes:
        """Return the raw ``getMore`` that waits at most ``await_ms`` milliseconds for events.

        Source: docs/protocol.md#cursor-replies.
        """
        database, _, collection = self.namespace.partition(".")
        return bson.encode(
            {
                "getMore": Int64(self.cursor_id),
                "collection": collection,
                "batchSize": batch_size,
                "maxTimeMS": await_ms,
                "$db": database,
            }
        )

    async def kill(self, borrow: Borrow, deadline: float) -> bool:
        """Kill the cursor over a borrowed connection to its member; False if that failed.

        ``deadline`` is on the running loop's clock.
        """
        loop = asyncio.get_running_loop()
        try:
            async with borrow(self.address, max(0.001, deadline - loop.time())) as connection:
                return await self.kill_over(connection, max(0.001, deadline - loop.time()))
        except (CommandError, NetworkError):
            return False

    async def kill_over(self, connection: Connection, timeout: float) -> bool:
        """Kill the cursor over an idle connection to its member; False if that failed.

        ``timeout`` is in seconds. A cursor that no longer exists counts as killed.
        """
        database, _, collection = self.namespace.partition(".")
        command = {"killCursors": collection, "cursors": [Int64(self.cursor_id)]}
        try:
            await connection.command(database, command, timeout=timeout)
        except (CommandError, NetworkError):
            return False
        return True


async def kill_all(
    left: list[OpenCursor],
    borrow: Borrow,
    deadline: float,
    kill_later: Callable[[OpenCursor], None],
) -> None:
    """Kill cursors before ``deadline`` on the running loop's clock.

    From the first whose member does not answer in time, or where the task is cancelled, they are
    passed to ``kill_later``.
    """
    try:
        while left and await left[-1].kill(borrow, deadline):
            left.pop()
    finally:
        for each in left:
            kill_later(each)


def encode_opening(opening: tuple[str, Mapping[str, Any]], clock: ClusterClock) -> bytes:
    """Return the raw command that opens a cursor: its database, its ``aggregate``, and the time."""
    database, command = opening
    command = {**command, "$db": database}
    if clock.raw is not None:
        command["$clusterTime"] = clock.document
    return bson.encode(command)
