"""The cluster's shard list, as the config server has it."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import structlog
from bson.timestamp import Timestamp

from router.stream_settings import StreamSettings
from router.tasks import SharedAnswer
from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock
from shard_client.errors import (
    RESUMABLE_LABEL,
    CommandError,
    ErrorCode,
    NetworkError,
    from_network,
    is_resumable,
)
from shard_client.wire.connection import Connection

log = structlog.get_logger()

_MOST_SHARDS = 100_000


class ShardList(NamedTuple):
    """Host strings by shard id, and the config server's times ``before`` and after the read.

    A change stream that starts at ``before`` misses no change of the list. All changes that the
    list reflects, including removals of shards, happened at ``by`` or earlier. ``before`` is None
    for a list that never changes.
    """

    hosts: Mapping[str, str]
    before: Timestamp | None
    by: Timestamp
    draining: frozenset[str] = frozenset()
    """Ids of the shards that are being removed."""


class ShardListReader:
    """Reads the shard list from the config server; concurrent callers share one read.

    Create it in a running loop; ``await close()`` ends the read in flight, and allows no other.

    Args:
        lend: lends a connection to the config server's primary, which has just answered a hello;
            raises CommandError.
        clock: the newest cluster time, which each reply advances.
        settings: the pauses between attempts, and the time in which a server must reply.
        adopt: called with each list before callers have it; raises ValueError if it is invalid.
    """

    def __init__(
        self,
        lend: Callable[[], AbstractAsyncContextManager[Connection]],
        clock: ClusterClock,
        settings: StreamSettings,
        adopt: Callable[[ShardList], None],
    ) -> None:
        self._lend = lend
        self._clock = clock
        self._settings = settings
        self._adopt = adopt
        self._answer = SharedAnswer(self._read_on, "read the shard list")
        self._failure: CommandError | None = None
        self.close = self._answer.close

    async def get(self, timeout: float) -> ShardList:
        """Return the shard list, read after this call.

        Raises CommandError: a failure that is final, or the last one within ``timeout`` seconds,
        labelled resumable; TimeoutError if there was none.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._answer.get()
        except TimeoutError:
            if self._failure is None:
                raise
            # Each caller raises its own copy.
            raise self._failure.with_labels(RESUMABLE_LABEL) from None

    async def _read_on(self) -> ShardList:
        """Read the list, again and again, while the failure may be over soon and a caller waits."""
        backoff = Backoff(self._settings.backoff_first, self._settings.backoff_max)
        self._failure = None
        while True:
            try:
                return await self._read()
            except NetworkError as error:
                failure = from_network(error, "the config server")
            except CommandError as error:
                if not is_resumable(error):
                    raise
                failure = error
            report = log.debug if self._failure else log.warning
            report("cannot read the shard list", error=str(failure))
            self._failure = failure
            await asyncio.sleep(backoff.next_pause())

    async def _read(self) -> ShardList:
        async with self._lend() as connection:
            before = _time_of(connection.hello)
            command: dict[str, Any] = {
                "find": "shards",
                "batchSize": _MOST_SHARDS,
                "singleBatch": True,
                "readConcern": {"level": "majority", "afterClusterTime": before},
            }
            if self._clock.document is not None:
                command["$clusterTime"] = self._clock.document
            wait = self._settings.reply_timeout
            reply = await connection.command("config", command, timeout=wait)
            self._clock.advance(reply.get("$clusterTime"))
            by = _time_of(reply)
        try:
            listed = reply["cursor"]["firstBatch"]
            hosts = {shard["_id"]: shard["host"] for shard in listed}
            draining = frozenset(shard["_id"] for shard in listed if shard.get("draining"))
            shards = ShardList(hosts, before, by, draining)
            self._adopt(shards)
        except (KeyError, TypeError, ValueError) as error:
            raise CommandError(
                ErrorCode.FailedToParse, f"config.shards cannot be read: {error!r}"
            ) from error
        return shards


def _time_of(reply: Mapping[str, Any]) -> Timestamp:
    """Return the operation time of a member's reply; raise CommandError if it has none."""
    time = reply.get("operationTime")
    if not isinstance(time, Timestamp):
        raise CommandError(ErrorCode.IllegalOperation, "the config server reports no cluster time")
    return time
