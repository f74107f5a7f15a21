"""Reads through the upstream mongos: complete results of a command as raw BSON, within bounds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from typing import Any, NamedTuple

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from router.limits.memory import Holding
from router.stream_settings import StreamSettings
from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import (
    NOT_PRIMARY_CODES,
    CommandError,
    ErrorCode,
    NetworkError,
    ProtocolError,
)
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.wire.connection import Connection
from shard_client.wire.documents import encode

Lend = Callable[[], AbstractAsyncContextManager[Connection]]
"""Lends a connection to the upstream for a block; raises CommandError, NetworkError."""

_SLOW_SECONDS = 1.0
"""After so long a request leaves its place to the next one and continues, so that slow requests do
not delay others."""
_RETRIED = NOT_PRIMARY_CODES | {ErrorCode.HostUnreachable}
"""Codes of errors after which a read is repeated over another connection."""

_MS = 1000
_GRACE = 5.0
"""Seconds beyond ``maxTimeMS`` within which the upstream must report that the time is over."""


class Result(NamedTuple):
    """The raw documents of a cursor; ``whole`` is False if the cursor has more documents."""

    documents: list[bytes]
    whole: bool


class UpstreamReads:
    """Runs reads on the upstream for all streams of the process. Create it in a running loop.

    Each reply advances ``clock``. ``sent_time`` returns the ``$clusterTime`` sent with each read,
    by default the clock's newest.
    """

    def __init__(
        self,
        lend: Lend,
        clock: ClusterClock,
        settings: StreamSettings,
        *,
        sent_time: Callable[[], bytes | None] | None = None,
    ) -> None:
        self.settings = settings
        self._sent_time = sent_time or (lambda: clock.raw)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lend = lend
        self._places = asyncio.Semaphore(settings.lookup_connections)

    def target_bytes(self, held: Holding) -> int:
        """Return the target for the total size of one request's documents, as memory allows now.

        ``held`` counts them.
        """
        return min(self.settings.lookup_bytes, held.memory.batch_bytes)

    async def read(
        self,
        database: str,
        command: Mapping[str, Any],
        held: Holding,
        most_bytes: int | None = None,
        *,
        deadline: float | None = None,
    ) -> Result:
        """Return the documents of all batches of the cursor that ``command`` opens.

        Args:
            database: the database on which the command runs.
            command: a ``find`` or an ``aggregate``.
            held: counts the documents as they arrive; the caller lets go of them.
            most_bytes: stop after this many bytes of documents; None for all. The last batch, up to
                16 MiB, may exceed it.
            deadline: the time, on the loop's clock, at which the read fails; by default after the
                time limit of the settings.

        Raises:
            CommandError: the upstream's error; 89 if it takes too long; 6 if it stays unreachable
                until the time limit.
        """
        begun = self._loop.time()
        until = begun + self.settings.failure_timeout if deadline is None else deadline
        backoff = Backoff(self.settings.backoff_first, self.settings.backoff_max)
        while True:
            try:
                async with self._borrowed(until) as connection:
                    return await self._read_once(
                        connection, database, command, held, most_bytes, until
                    )
            except NetworkError as error:
                failure = CommandError(
                    ErrorCode.HostUnreachable, f"looking documents up through the upstream: {error}"
                )
            except CommandError as error:
                failure = error
            pause = backoff.next_pause()
            if failure.code not in _RETRIED or self._loop.time() + pause >= until:
                break
            await asyncio.sleep(pause)
        if failure.code == ErrorCode.MaxTimeMSExpired:
            message = f"the upstream mongos did not look documents up within {until - begun:.3g} s"
            raise CommandError(ErrorCode.NetworkTimeout, message) from failure
        raise failure

    @asynccontextmanager
    async def _borrowed(self, deadline: float) -> AsyncIterator[Connection]:
        """Lend a connection in turn: waiting requests begin as others end, or take a second.

        One to a server that is no longer the primary is cut. Raises CommandError (NetworkTimeout)
        if the turn has not come by the deadline.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            message = "the router has too many slow requests to the upstream mongos"
            raise CommandError(ErrorCode.NetworkTimeout, message) from None
        with ExitStack() as place:
            place.callback(self._places.release)
            slow = self._loop.call_later(_SLOW_SECONDS, place.close)
            place.callback(slow.cancel)
            async with self._lend() as connection:
                try:
                    yield connection
                except CommandError as error:
                    if error.code in NOT_PRIMARY_CODES:
                        connection.abort()
                    raise

    async def _read_once(
        self,
        connection: Connection,
        database: str,
        command: Mapping[str, Any],
        held: Holding,
        most_bytes: int | None,
        deadline: float,
    ) -> Result:
        most_time = max(1, int((deadline - self._loop.time()) * _MS))
        opening: dict[str, Any] = {**command, "maxTimeMS": most_time, "$db": database}
        time = self._sent_time()
        if time is not None:
            opening["$clusterTime"] = RawBSONDocument(time)
        raw = encode(opening)
        documents: list[bytes] = []
        size = 0
        while True:
            left = max(0.0, deadline - self._loop.time())
            body = await connection.command_raw(raw, timeout=left + _GRACE)
            try:
                reply = CursorBatch.of(body)
                batch = reply.documents()
            except ProtocolError as error:
                connection.abort()
                raise NetworkError(f"the upstream broke the protocol: {error}") from error
            self._clock.advance(reply.cluster_time)
            documents += batch
            batch_size = sum(map(len, batch))
            size += batch_size
            held.size += batch_size
            if not reply.cursor_id:
                return Result(documents, whole=True)
            collection = reply.namespace.partition(".")[2]
            if most_bytes is not None and size >= most_bytes:
                killing = {"killCursors": collection, "cursors": [Int64(reply.cursor_id)]}
                await connection.command(database, killing, timeout=_GRACE)
                return Result(documents, whole=False)
            more = {"getMore": Int64(reply.cursor_id), "collection": collection, "$db": database}
            raw = encode(more)
