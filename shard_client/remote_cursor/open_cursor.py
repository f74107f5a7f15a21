"""A cursor that is open on a member: the commands that open, read and kill it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import bson
import structlog
from bson.int64 import Int64

from shard_client.cluster_clock import ClusterClock
from shard_client.errors import CommandError, NetworkError
from shard_client.wire.connection import Address, Connection, format_address

log = structlog.get_logger()

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

    async def kill(self, borrow: Borrow, timeout: float) -> bool:
        """Kill the cursor over a borrowed connection; return False if that failed.

        ``timeout``, in seconds, limits connecting, and then the wait for the reply. A cursor that
        no longer exists counts as killed.
        """
        database, _, collection = self.namespace.partition(".")
        command = {"killCursors": collection, "cursors": [Int64(self.cursor_id)]}
        try:
            async with borrow(self.address, timeout) as connection:
                await connection.command(database, command, timeout=timeout)
        except (CommandError, NetworkError) as error:
            member = format_address(self.address)
            log.debug("cannot kill a cursor yet", member=member, error=str(error))
            return False
        return True


class SentCommands(Protocol):
    """Counters of the commands sent to one replica set."""

    openings: int
    get_mores: int
    reopenings: int


def encode_opening(opening: tuple[str, Mapping[str, Any]], clock: ClusterClock) -> bytes:
    """Return the raw command that opens a cursor: its database, its ``aggregate``, and the time."""
    database, command = opening
    command = {**command, "$db": database}
    if clock.raw is not None:
        command["$clusterTime"] = clock.document
    return bson.encode(command)
