"""A change stream that resumes after errors, by the drivers' specification."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import bson
from bson.int64 import Int64

from shard_client.errors import RESUMABLE_LABEL, CommandError, NetworkError
from shard_client.wire.connection import Address, Connection

_CURSOR_NOT_FOUND = 43
_CONNECT_TIMEOUT = 1.5
_MORE_THAN_AWAIT = 4.0
_OPEN_TIMEOUT = 8.0

Token = dict[str, Any]


def is_resumable(error: Exception) -> bool:
    """Return whether a driver reopens the stream after this error."""
    if isinstance(error, NetworkError):
        return True
    return isinstance(error, CommandError) and (
        RESUMABLE_LABEL in error.labels or error.code == _CURSOR_NOT_FOUND
    )


class Batch:
    """One reply: raw events, their tokens, and the token to resume from afterwards."""

    def __init__(self, cursor: Mapping[str, Any], name: str) -> None:
        self.cursor_id = int(cursor["id"])
        self.events: list[dict[str, Any]] = list(cursor[name])
        self.pbrt: Token = cursor["postBatchResumeToken"]


class DriverCursor:
    """One cursor on the router, over a connection of its own; ``open`` first."""

    def __init__(self, address: Address, database: str, target: str | int, lsid: bytes) -> None:
        self._address = address
        self._database = database
        self._target = target
        self._lsid = {"id": bson.Binary(lsid, 4)}
        self.connection: Connection | None = None
        self.cursor_id = 0
        self._collection = ""

    async def open(
        self, stage: Mapping[str, Any], pipeline: list[dict[str, Any]], batch_size: int | None
    ) -> Batch:
        """Run the aggregate. Raises CommandError, NetworkError."""
        try:
            connection = await Connection.open(
                self._address, timeout=_CONNECT_TIMEOUT, app_name="simulation"
            )
        except CommandError as error:
            # A driver treats a failed hello as an unreachable server.
            raise NetworkError(str(error)) from error
        self.connection = connection
        reply = await connection.command(
            self._database,
            {
                "aggregate": self._target,
                "pipeline": [{"$changeStream": dict(stage)}, *pipeline],
                "cursor": {} if batch_size is None else {"batchSize": batch_size},
                "lsid": self._lsid,
            },
            timeout=_OPEN_TIMEOUT,
        )
        return self._taken(reply["cursor"], "firstBatch")

    async def more(self, batch_size: int | None, max_time_ms: int) -> Batch:
        """Run a getMore. Raises CommandError, NetworkError."""
        assert self.connection is not None
        command: dict[str, Any] = {
            "getMore": Int64(self.cursor_id),
            "collection": self._collection,
            "maxTimeMS": max_time_ms,
            "lsid": self._lsid,
        }
        if batch_size is not None:
            command["batchSize"] = batch_size
        reply = await self.connection.command(
            self._database, command, timeout=max_time_ms / 1000 + _MORE_THAN_AWAIT
        )
        return self._taken(reply["cursor"], "nextBatch")

    def _taken(self, cursor: Mapping[str, Any], name: str) -> Batch:
        batch = Batch(cursor, name)
        self.cursor_id = batch.cursor_id
        self._collection = cursor["ns"].partition(".")[2]
        return batch

    async def close(self) -> None:
        """Try to kill the cursor, and close the connection."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if self.cursor_id and not connection.closed:
            command = {"killCursors": self._collection, "cursors": [Int64(self.cursor_id)]}
            with suppress(CommandError, NetworkError):
                await connection.command(
                    self._database, {**command, "lsid": self._lsid}, timeout=_CONNECT_TIMEOUT
                )
        self.cursor_id = 0
        connection.abort()

    def ending(self, *, end_session: bool) -> tuple[str, dict[str, Any]]:
        """Return the database and the command that ends the cursor or its whole session."""
        if end_session:
            return "admin", {"endSessions": [self._lsid]}
        kill = {"killCursors": self._collection, "cursors": [Int64(self.cursor_id)]}
        return self._database, {**kill, "lsid": self._lsid}

    def vanish(self) -> None:
        """Cut the connection without killing the cursor."""
        self.cursor_id = 0
        if self.connection is not None:
            self.connection.abort()
            self.connection = None


async def ask(
    address: Address, command: Mapping[str, Any], database: str = "admin"
) -> dict[str, Any]:
    """Run one command over a connection of its own. Raises CommandError, NetworkError."""
    connection = await Connection.open(address, timeout=_CONNECT_TIMEOUT)
    try:
        return await connection.command(database, command, timeout=_OPEN_TIMEOUT)
    finally:
        connection.abort()
        await asyncio.sleep(0)
