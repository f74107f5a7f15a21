"""The time at which a stream begins that is opened now: after all writes of the shards
(docs/design.md#opening-and-resuming)."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import structlog
from bson.timestamp import Timestamp

from router.bson_text import plain
from router.catalog.cluster import Cluster, MemberDialer
from router.catalog.shard_list import ShardList
from router.request.stream_request import StreamRequest
from router.stream_settings import StreamSettings
from router.tasks import SharedAnswer, shutting_down
from shard_client.bson.resume_token import next_tick
from shard_client.errors import CommandError, ErrorCode, NetworkError, from_network
from shard_client.replica_set.replica_set import PRIMARY, ReadPreference
from shard_client.wire.connection import Connection, format_address

log = structlog.get_logger()

_PRIMARY_TIMEOUT = 1.0
"""Seconds for which a stream that reads other members waits for a shard's primary."""

_Asked = tuple[ReadPreference, str | None]


class Now(NamedTuple):
    """A time after all writes that the shards had made, and the shard list read just before it."""

    time: Timestamp
    listed: ShardList


class ClusterTimeFetcher:
    """Fetches the cluster time from the shards; calls made during a fetch share the next one.

    A fetch sends one hello to each shard over a connection of the cluster's pool, and one more to
    its primary where that is not the member to read from. ``await close()`` ends the fetches in
    flight, and allows no other.
    """

    def __init__(self, cluster: Cluster, settings: StreamSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._answers: dict[_Asked, SharedAnswer[Now]] = {}
        self._closed = False

    async def now(self, request: StreamRequest) -> Now:
        """Return a time after all writes that the request's shards made before this call.

        Writes made after the return have that time or a later one, but for those of a primary that
        could not be reached. Raises CommandError, labelled as mongos labels it; 91 after ``close``.
        """
        if self._closed:
            raise shutting_down("the router ends: cannot ask the time")
        key = (ReadPreference.of(request.read_preference), request.passthrough_to_shard)
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = SharedAnswer(partial(self._ask, *key), "ask the time")
        try:
            return await answer.get()
        finally:
            if answer.idle and self._answers.get(key) is answer:
                del self._answers[key]

    async def check_reached(self, time: Timestamp, request: StreamRequest) -> None:
        """Raise mongos's CommandError 72 if the request's shards have not reached a time."""
        clock = self._cluster.clock
        if (clock.time is None or clock.time < time) and (await self.now(request)).time <= time:
            raise CommandError(
                ErrorCode.InvalidOptions,
                "readConcern afterClusterTime value must not be greater than the current "
                f"clusterTime. Requested clusterTime: {{ ts: {plain(time)} }}; current "
                f"clusterTime: {{ ts: {plain(clock.time)} }}",
            )

    async def close(self) -> None:
        """End the fetches in flight; later callers fail."""
        self._closed = True
        for answer in list(self._answers.values()):
            await answer.close()

    async def _ask(self, preference: ReadPreference, only: str | None) -> Now:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.opening_time(preference)
        listed = await self._cluster.shards(self._settings.open_timeout)
        asked = {shard: host for shard, host in listed.hosts.items() if only in (None, shard)}
        left = max(0.0, deadline - loop.time())
        # Each hello returns its shard's time; the next tick is after all writes made so far.
        async with connections_to(self._cluster, asked, preference, left) as connections:
            time = next_tick(self._cluster.clock.time or Timestamp(0, 0))
            left = max(0.001, deadline - loop.time())
            async with stream_tasks() as group:
                for shard, connection in connections.items():
                    task = self._send_time(connection, left)
                    group.create_task(task, name=f"send the time to {shard}")
            if preference.mode != PRIMARY.mode:
                await self._send_time_to_primaries(asked)
            return Now(time, listed)

    async def _send_time_to_primaries(self, shards: Mapping[str, str]) -> None:
        """Send the newest cluster time to the shards' primaries, where other members are read.

        A secondary passes it on to its primary only with its next heartbeat or fetch of the oplog;
        until then the primary's writes could have times before the one returned. A shard without a
        primary that answers does not keep the stream from being opened.
        """
        timeout = min(_PRIMARY_TIMEOUT, self._settings.connect_timeout)

        async def send_time(shard: str, host: str) -> None:
            try:
                async with self._cluster.lend(shard, host, timeout=timeout) as connection:
                    await self._send_time(connection, timeout)
            except CommandError as error:
                problem = "cannot send the cluster time to a primary"
                log.debug(problem, target=shard, error=str(error))

        async with asyncio.TaskGroup() as group:
            for shard, host in shards.items():
                group.create_task(send_time(shard, host), name=f"send the time to {shard}")

    async def _send_time(self, connection: Connection, timeout: float) -> None:
        """Send the newest cluster time to a shard that is behind it.

        If no cursor is opened, nothing else sends it, and the shard's next writes would have times
        before the one returned.
        """
        document = self._cluster.clock.document
        if document is None or connection.hello.get("$clusterTime") == document:
            return
        command = {"ping": 1, "$clusterTime": document}
        timeout = min(timeout, self._settings.reply_timeout)
        try:
            await connection.command("admin", command, timeout=timeout)
        except NetworkError as error:
            raise from_network(error, format_address(connection.address)) from error


@asynccontextmanager
async def stream_tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """Wait for tasks; raises the first one's CommandError, labelled as mongos labels it."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        if isinstance(first, CommandError):
            raise first.with_change_stream_label() from first
        raise


@asynccontextmanager
async def connections_to(
    cluster: Cluster, shards: Mapping[str, str], preference: ReadPreference, timeout: float
) -> AsyncIterator[Mapping[str, Connection]]:
    """Connect to all shards concurrently within ``timeout`` seconds, for the block.

    ``shards`` maps ids to host strings, since a shard may have been removed since the list was
    read. Raises CommandError, labelled as mongos labels it.
    """
    connections: dict[str, Connection] = {}

    async def connect(shard: str, host: str) -> None:
        dialer = MemberDialer(cluster, shard, host, preference)
        connections[shard] = await dialer.connect(timeout)

    try:
        async with stream_tasks() as group:
            for shard, host in shards.items():
                group.create_task(connect(shard, host), name=f"connect {shard}")
        yield connections
    finally:
        for connection in connections.values():
            cluster.pool.give_back(connection)
