"""Nudges: commands that move an idle member's oplog past a cluster time, so that promises advance.

See docs/design.md#idle-shards; source of the commands: docs/protocol.md#sharded-cluster.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

import structlog
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from router.catalog.cluster import Cluster
from router.stream_settings import StreamSettings
from router.streams.member_load import MemberLoads
from router.streams.note_budget import NOTE_BYTES, NoteBudget
from shard_client.backoff import Backoff
from shard_client.cluster_clock import ClusterClock, next_tick
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError, NetworkError, ProtocolError
from shard_client.replica_set.replica_set import ReplicaSet
from shard_client.wire.connection import Connection
from shard_client.wire.documents import decode, encode

log = structlog.get_logger()

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
"""Seconds without nudges after a failed one; the pause doubles with each failure."""

_ATTEMPTS = 3
"""Maximum number of commands of one nudge: one over a connection that was cut unnoticed, one over a
new connection, and a read if notes are not allowed."""

_TAKES = 0.001
"""Initial estimate of the seconds that a nudge takes; replaced by a moving average."""
_MEMORY = 8
"""Number of nudges over which that average is taken."""

_MOST_MS = 1000
"""Milliseconds that a member may take to replicate a note, or to wait for a cluster time."""

_NOT_ALLOWED = frozenset(
    {ErrorCode.Unauthorized, ErrorCode.CommandNotFound, ErrorCode.IllegalOperation}
)


class NudgeResult(Enum):
    """The outcome of a nudge."""

    UNWANTED = auto()
    """Not sent: no request still wanted the nudge when the member's budget allowed it."""
    FAILED = auto()
    """The command failed; how far the member's oplog has advanced is unknown."""
    READ = auto()
    """The member has answered a read; how far its oplog has advanced is unknown."""
    THERE = auto()
    """The member's oplog was already past the time; a majority may not have replicated it yet."""
    ACKNOWLEDGED = auto()
    """A majority of the replica set has a note after the time."""


class NudgeSender:
    """Nudges the cluster's members for all streams of the process.

    At most one nudge is in flight per member, and each takes a token of the member's
    ``NoteBudget``; requests made meanwhile share the next one. A member that refuses notes gets a
    read instead. ``loads`` counts the commands sent to each member.
    """

    def __init__(self, cluster: Cluster, limits: StreamSettings, loads: MemberLoads) -> None:
        self._cluster = cluster
        self._limits = limits
        self.loads = loads
        self._targets: dict[str, _Target] = {}
        self._notes = _Notes(cluster.clock)
        self._ended: set[asyncio.Task[None]] = set()

    def nudge(
        self,
        target: str,
        host: str,
        *,
        wanted: Callable[[], Timestamp | None],
        begun: Callable[[float], None],
        done: Callable[[NudgeResult], None],
    ) -> None:
        """Request a nudge that moves ``target`` past the time that ``wanted`` returns.

        ``wanted`` is called when the member's budget allows the nudge; if it returns None for all
        requests, no nudge is sent. ``host`` is the target's host string, for a shard that is not
        in the shard list (yet). ``begun(takes)`` is called when the command is sent, with the
        seconds that it is expected to take; ``done`` is called after the attempt.
        """
        if self._limits.nudges:
            self._target(target, host).ask(_Request(wanted, begun, done))

    def ready_at(self, target: str, host: str, now: float) -> float:
        """Return the time at which ``target`` may be nudged next: ``now`` if it may be at once."""
        return self._target(target, host).budget.ready_at(now)

    def next_tick(self, target: str, host: str, now: float) -> float:
        """Return the time at which a nudge sent at the next tick of the budget should be done."""
        found = self._target(target, host)
        return found.budget.next_tick(now) + found.takes

    async def close(self) -> None:
        """End nudges in flight and close their connections."""
        for target in self._targets.values():
            await target.close()
        while self._ended:
            await asyncio.wait(self._ended)

    def _target(self, name: str, host: str) -> "_Target":
        found = self._targets.get(name)
        if found is None:
            self._forget_the_gone()
            found = _Target(self._cluster, self._limits, self._notes, self.loads, name)
            self._targets[name] = found
        found.host = host
        return found

    def _forget_the_gone(self) -> None:
        """Close the connections to idle shards that are no longer in the shard list.

        Streams still read a removed shard, and nudge it, until they have passed its removal.
        """
        for name, target in list(self._targets.items()):
            if target.busy or self._cluster.replica_set(name) is not None:
                continue
            del self._targets[name]
            task = asyncio.get_running_loop().create_task(target.close())
            self._ended.add(task)
            task.add_done_callback(self._ended.discard)


class _Request(NamedTuple):
    wanted: Callable[[], Timestamp | None]
    begun: Callable[[float], None]
    done: Callable[[NudgeResult], None]


class _Notes:
    """The command that writes a note after a time, encoded once for all members that need it."""

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
        self,
        cluster: Cluster,
        limits: StreamSettings,
        notes: _Notes,
        loads: MemberLoads,
        name: str,
    ) -> None:
        self.host = ""
        self.takes = _TAKES
        self.budget = NoteBudget(limits.nudges_per_second, limits.nudge_burst)
        self._cluster = cluster
        self._notes = notes
        self._limits = limits
        self._name = name
        self._load = loads.of(name)
        self._waiting: list[_Request] = []
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._followed: ReplicaSet | None = None
        self._oplog_asked = False
        self._not_before = float("-inf")
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._by_note = True
        self._failing = False

    @property
    def busy(self) -> bool:
        """Whether requests wait, or a nudge is in flight."""
        return self._task is not None

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
                await self._turn()
                waiting, self._waiting = self._waiting, []
                wanted = [past for each in waiting if (past := each.wanted()) is not None]
                result = NudgeResult.UNWANTED
                begun = loop.time()
                if wanted:
                    self.budget.take(begun)
                    for request in waiting:
                        request.begun(self.takes)
                    result = await self._nudge(max(wanted))
                if result is NudgeResult.FAILED:
                    self._not_before = loop.time() + self._backoff.next_pause()
                elif wanted:
                    self._backoff.reset()
                    self.takes += (loop.time() - begun - self.takes) / _MEMORY
                for request in waiting:
                    request.done(result)
                await self._learn_oplog_size()
        finally:
            self._task = None

    async def _turn(self) -> None:
        """Wait until the member may be nudged."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            turn = max(self._not_before, self.budget.ready_at(now))
            if turn <= now:
                return
            await asyncio.sleep(turn - now)

    async def _nudge(self, past: Timestamp) -> NudgeResult:
        """Send one nudge: a note, or a read if the member refuses notes."""
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            kept = self._keep_connection()
            try:
                await self._ask(past)
            except CommandError as failure:
                if failure.code == ErrorCode.StaleClusterTime:
                    return NudgeResult.THERE
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
                return NudgeResult.ACKNOWLEDGED if self._by_note else NudgeResult.READ
        report = log.debug if self._failing else log.info
        report("nudge failed", target=self._name, error=str(error))
        self._failing = True
        return NudgeResult.FAILED

    def _keep_connection(self) -> bool:
        """Close a connection to a replaced replica set; return whether a connection is left."""
        if self._connection is not None and self._followed is not self._cluster.replica_set(
            self._name
        ):
            self._connection.abort()
            self._connection = None
        return self._connection is not None

    async def _ask(self, past: Timestamp) -> None:
        connection = self._connection or await self._connect()
        timeout, clock = self._limits.connect_timeout, self._cluster.clock
        if self._by_note:
            self._load.nudges += 1
            reply = await connection.command_raw(self._notes.past(past), timeout=timeout)
            answer = decode(reply)
            if not answer.get("ok"):
                raise CommandError.from_reply(answer)
            self._load.notes += 1
            self._load.note_bytes += NOTE_BYTES
            if (unreplicated := answer.get("writeConcernError")) is not None:
                raise CommandError.from_reply(unreplicated)
        else:
            self._load.nudges += 1
            database, command = self._read(past)
            if clock.document is not None:
                command["$clusterTime"] = clock.document
            answer = await connection.command(database, command, timeout=timeout)
        clock.advance(answer.get("$clusterTime"))

    async def _connect(self) -> Connection:
        known = self._cluster.replica_set(self._name) is not None
        dialer = self._cluster.dialer(self._name, None if known else self.host)
        connection = await dialer.connect(self._limits.connect_timeout)
        self._connection, self._followed = connection, self._cluster.replica_set(self._name)
        self._oplog_asked = False
        return connection

    def _read(self, past: Timestamp) -> tuple[str, dict[str, Any]]:
        """Return a read that matches nothing; any user that may read any database may run it."""
        concern: dict[str, Any] = {"level": "majority"}
        time = self._cluster.clock.time
        if time is not None:
            # The member refuses an afterClusterTime beyond its own cluster time.
            concern["afterClusterTime"] = min(time, next_tick(past))
        return "mergerouter", {
            "find": "nothing",
            "limit": 1,
            "singleBatch": True,
            "readConcern": concern,
            "maxTimeMS": _MOST_MS,
        }

    async def _learn_oplog_size(self) -> None:
        """Ask once per connection for the oplog's maximum size and limit the budget by it."""
        if self._connection is None or self._oplog_asked:
            return
        self._oplog_asked = True
        try:
            answer = await self._connection.command(
                "local", {"collStats": "oplog.rs"}, timeout=self._limits.connect_timeout
            )
        except CommandError as error:
            log.info("size of the oplog is not to be learnt", target=self._name, error=str(error))
        except (NetworkError, ProtocolError):
            self._drop_connection()
        else:
            size = answer.get("maxSize")
            if isinstance(size, int | float) and size > 0:
                self.budget.bound_by_oplog(int(size), self._limits.nudge_share)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            if self._followed is not None:
                self._followed.invalidate(self._connection.address)
            self._connection.abort()
            self._connection = None
