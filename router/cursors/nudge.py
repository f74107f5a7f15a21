"""Getting an idle member past a cluster time, so that its promise moves.

docs/design.md, section 9; source of the commands: docs/protocol.md, section 6.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.cursors.limits import StreamLimits
from shard_client.cluster_clock import ClusterClock, next_tick
from shard_client.connection import Connection
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.frames import decode, encode

log = structlog.get_logger()

_AFTER_FAILURE = 0.5
"""Seconds without nudges after one that failed."""

_ATTEMPTS = 3
"""Commands that one nudge takes at most: over a connection that was cut unnoticed, over a new one,
and the other way if notes are not allowed."""

_AT_ONCE = 5
"""Nudges that may follow each other at once, after a time with less than are allowed."""

_TAKES = 0.001
"""Seconds that a nudge takes, by what is known of a member before the first; then the average."""
_MEMORY = 8
"""Nudges over which that is averaged."""

_MOST_MS = 1000
"""What a member may take to replicate a note, or to wait for a time."""

_NOT_ALLOWED = frozenset(
    {ErrorCode.Unauthorized, ErrorCode.CommandNotFound, ErrorCode.IllegalOperation}
)


class Nudger:
    """Nudges the cluster's members, for all streams of the process.

    At most one nudge is in flight per target, and ``nudges_per_second`` are made; what is asked for
    meanwhile is made good by the next one. A member that allows no note is read from instead.
    """

    def __init__(self, cluster: Cluster, limits: StreamLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._targets: dict[str, _Target] = {}
        self._notes = _Notes(cluster.clock)

    def nudge(
        self,
        target: str,
        host: str,
        past: Timestamp,
        *,
        begun: Callable[[float], None],
        done: Callable[[bool], None],
    ) -> None:
        """Have ``target`` promise more than ``past``.

        ``begun(takes)`` is called when that begins, with the seconds that it may take; ``done``
        after the attempt, with whether the member is known to be past the time now.
        """
        if self._limits.nudge:
            if target not in self._targets:
                self._targets[target] = _Target(
                    self._cluster, self._limits, self._notes, target, host
                )
            self._targets[target].ask(_Request(past, begun, done))

    @property
    def counts(self) -> dict[str, int]:
        """Nudges made so far, by target."""
        return {name: target.made for name, target in self._targets.items()}

    async def close(self) -> None:
        """End nudges in flight and close their connections."""
        for target in self._targets.values():
            await target.close()


class _Request(NamedTuple):
    past: Timestamp
    begun: Callable[[float], None]
    done: Callable[[bool], None]


class _Notes:
    """The command that takes a member past a time, encoded once for all that are to get there."""

    def __init__(self, clock: ClusterClock) -> None:
        self._clock = clock
        self._made: tuple[Timestamp, bytes | None] | None = None
        self._body = b""

    def past(self, past: Timestamp) -> bytes:
        wanted = (past, self._clock.raw)
        if wanted != self._made:
            self._made = wanted
            command: dict[str, Any] = {
                "appendOplogNote": 1,
                "maxClusterTime": next_tick(past),
                "data": {"msg": "mergerouter"},
                "writeConcern": {"w": "majority", "wtimeout": _MOST_MS},
                "$db": "admin",
            }
            if self._clock.raw is not None:
                command["$clusterTime"] = RawBSONDocument(self._clock.raw)
            self._body = encode(command)
        return self._body


class _Target:
    """The nudges of one replica set."""

    def __init__(
        self, cluster: Cluster, limits: StreamLimits, notes: _Notes, name: str, host: str
    ) -> None:
        self._cluster = cluster
        self._notes = notes
        self._limits = limits
        self._name = name
        self._dialer = cluster.dialer(name, host)
        self._waiting: list[_Request] = []
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._next = float("-inf")
        self._takes = _TAKES
        self._by_note = True
        self._failing = False
        self.made = 0

    def ask(self, request: _Request) -> None:
        self._waiting.append(request)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"nudge {self._name}"
            )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._connection is not None:
            self._connection.abort()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                pause = self._turn(loop.time()) - loop.time()
                if pause > 0:
                    await asyncio.sleep(pause)
                waiting, self._waiting = self._waiting, []
                for request in waiting:
                    request.begun(self._takes)
                begun = loop.time()
                worked = await self._nudge(max(request.past for request in waiting))
                if worked:
                    self._takes += (loop.time() - begun - self._takes) / _MEMORY
                else:
                    self._next = loop.time() + _AFTER_FAILURE
                for request in waiting:
                    request.done(worked and self._by_note)
        finally:
            self._task = None

    def _turn(self, now: float) -> float:
        """Take the next turn, and return its time: some come at once, all at the rate allowed."""
        apart = 1 / self._limits.nudges_per_second
        turn = self._next = max(self._next, now - _AT_ONCE * apart) + apart
        return turn

    async def _nudge(self, past: Timestamp) -> bool:
        """Make one nudge, by whichever way the member allows; False if neither worked."""
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            kept = self._connection is not None
            try:
                await self._ask(past)
            except CommandError as failure:
                if failure.code == ErrorCode.StaleClusterTime:
                    return True
                error = failure
                if failure.code not in _NOT_ALLOWED:
                    self._drop_connection()
                    break
                if not self._by_note:
                    break
                log.info("member allows no note, reads instead", target=self._name)
                self._by_note = False
            except (NetworkError, ProtocolError) as failure:
                error = failure
                self._drop_connection()
                if not kept:
                    break
            else:
                self._failing = False
                return True
        say = log.debug if self._failing else log.info
        say("nudge failed", target=self._name, error=str(error))
        self._failing = True
        return False

    async def _ask(self, past: Timestamp) -> None:
        self.made += 1
        if self._connection is None:
            self._connection = await self._dialer.connect(self._limits.connect_timeout)
        timeout, clock = self._limits.connect_timeout, self._cluster.clock
        if self._by_note:
            reply = await self._connection.command_raw(self._notes.past(past), timeout=timeout)
            answer = decode(reply)
            if not answer.get("ok"):
                raise CommandError.from_reply(answer)
        else:
            database, command = self._read(past)
            if clock.document is not None:
                command["$clusterTime"] = clock.document
            answer = await self._connection.command(database, command, timeout=timeout)
        clock.advance(answer.get("$clusterTime"))

    def _read(self, past: Timestamp) -> tuple[str, dict[str, Any]]:
        """A read of nothing: who may read any database may make it."""
        concern: dict[str, Any] = {"level": "majority"}
        time = self._cluster.clock.time
        if time is not None:
            # A time that the member has not heard of would be refused.
            concern["afterClusterTime"] = min(time, next_tick(past))
        return "mergerouter", {
            "find": "nothing",
            "limit": 1,
            "singleBatch": True,
            "readConcern": concern,
            "maxTimeMS": _MOST_MS,
        }

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._dialer.suspect(self._connection.address)
            self._connection.abort()
            self._connection = None
