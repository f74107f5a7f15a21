"""Reads through the upstream mongos: complete results of a command as raw BSON, within bounds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument

from router.memory import Holding
from router.stream_settings import LookupSettings
from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.remote_cursor.cursor_reply import CursorBatch
from shard_client.wire.connection import Connection
from shard_client.wire.documents import encode

Connect = Callable[[], Awaitable[Connection]]
"""Opens a connection to the upstream; raises CommandError, NetworkError."""

_IDLE_SECONDS = 30.0
_SLOW_SECONDS = 1.0
"""After so long a request leaves its place to the next one and continues, so that slow requests do
not delay others."""
_T = TypeVar("_T")


class UpstreamConnections:
    """Connections that requests borrow one at a time. Create it in a running loop.

    Args:
        connect: opens a connection.
        most: maximum number of requests that have begun within the last second; further requests
            wait. As many connections are kept for later requests.
    """

    def __init__(self, connect: Connect, most: int) -> None:
        self._connect = connect
        self._most = most
        self._places = asyncio.Semaphore(most)
        self._idle: list[tuple[float, Connection]] = []
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None
        self._users = 0

    def enter(self) -> None:
        """Add a user: idle connections are kept for a while as long as there are users."""
        self._users += 1

    def leave(self) -> None:
        """Remove a user; after the last one no connection stays open."""
        self._users -= 1
        if not self._users:
            self._drop_idle()

    @asynccontextmanager
    async def borrow(self, deadline: float) -> AsyncIterator[Connection]:
        """Lend a connection for the block; a connection closed or busy afterwards is not kept.

        Args:
            deadline: the time, on the loop's clock, until which the request waits for its turn.

        Raises:
            CommandError: NetworkTimeout, if its turn has not come by then; HostUnreachable, if no
                mongos answers.
            NetworkError: the connection could not be opened.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError:
            message = "the router has too many slow requests to the upstream mongos"
            raise CommandError(ErrorCode.NetworkTimeout, message) from None
        place = ExitStack()
        place.callback(self._places.release)
        slow = self._loop.call_later(_SLOW_SECONDS, place.close)
        try:
            connection = self._take() or await self._connect()
            try:
                yield connection
            finally:
                full = not self._users or len(self._idle) >= self._most
                if connection.closed or connection.busy or full:
                    connection.abort()
                else:
                    self._idle.append((self._loop.time(), connection))
                    self._schedule()
        finally:
            slow.cancel()
            place.close()

    def _drop_idle(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for _, connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _take(self) -> Connection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def _schedule(self) -> None:
        if self._expiry is None:
            self._expiry = self._loop.call_later(_IDLE_SECONDS, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        oldest = self._loop.time() - _IDLE_SECONDS
        kept = []
        for since, connection in self._idle:
            if since <= oldest or connection.closed:
                connection.abort()
            else:
                kept.append((since, connection))
        self._idle = kept
        if kept:
            self._schedule()


async def persist(
    attempt: Callable[[], Awaitable[_T]], backoff: Backoff, deadline: float, codes: frozenset[int]
) -> _T:
    """Return the result of ``attempt``, retrying after network errors until ``deadline``.

    ``deadline`` is on the loop's clock; ``codes`` are the codes of the command errors that are
    retried too. Raises the last attempt's CommandError or NetworkError.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            return await attempt()
        except NetworkError:
            pause = backoff.next_pause()
            if loop.time() + pause >= deadline:
                raise
        except CommandError as error:
            pause = backoff.next_pause()
            if error.code not in codes or loop.time() + pause >= deadline:
                raise
        await asyncio.sleep(pause)


_MS = 1000
_GRACE = 5.0
"""Seconds beyond ``maxTimeMS`` within which the upstream must report that the time is over."""


class Result(NamedTuple):
    """The raw documents of a cursor; ``whole`` is False if the cursor has more documents."""

    documents: list[bytes]
    whole: bool


class UpstreamReads:
    """Runs reads on the upstream for all streams of the process. Create it in a running loop.

    Args:
        connect: opens a connection to the upstream.
        clock: the cluster's time, which each reply advances.
        sent_time: returns the ``$clusterTime`` sent with each read; by default the clock's newest.
        settings: bounds.
    """

    def __init__(
        self,
        connect: Connect,
        clock: ClusterClock,
        settings: LookupSettings,
        *,
        sent_time: Callable[[], bytes | None] | None = None,
    ) -> None:
        self.settings = settings
        self._sent_time = sent_time or (lambda: clock.raw)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.connections = UpstreamConnections(connect, settings.connections)

    def target_bytes(self, held: Holding) -> int:
        """Target for the total size of the documents of one request, as memory allows now.

        ``held`` counts them.
        """
        return min(self.settings.target_bytes, held.memory.batch_bytes)

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
        until = begun + self.settings.timeout if deadline is None else deadline

        async def attempt() -> Result:
            async with self.connections.borrow(until) as connection:
                raw = self._encoded(database, command, until)
                return await self._read(connection, database, raw, held, most_bytes, until)

        backoff = Backoff(self.settings.backoff_first, self.settings.backoff_max)
        try:
            return await persist(attempt, backoff, until, frozenset({ErrorCode.HostUnreachable}))
        except NetworkError as error:
            raise CommandError(
                ErrorCode.HostUnreachable, f"looking documents up through the upstream: {error}"
            ) from error
        except CommandError as error:
            if error.code != ErrorCode.MaxTimeMSExpired:
                raise
            raise CommandError(
                ErrorCode.NetworkTimeout,
                f"the upstream mongos did not look documents up within {until - begun:.3g} s",
            ) from error

    def _encoded(self, database: str, command: Mapping[str, Any], deadline: float) -> bytes:
        left = max(1, int((deadline - self._loop.time()) * _MS))
        body: dict[str, Any] = {**command, "maxTimeMS": left, "$db": database}
        time = self._sent_time()
        if time is not None:
            body["$clusterTime"] = RawBSONDocument(time)
        return encode(body)

    async def _read(
        self,
        connection: Connection,
        database: str,
        raw: bytes,
        held: Holding,
        most_bytes: int | None,
        deadline: float,
    ) -> Result:
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
