"""No-op writes: commands after which an idle member's oplog has an entry after a cluster time, so
that the member's watermark passes that time. Streams request them, and one writer serves them all.

See docs/design.md#idle-shards; source of the commands: docs/protocol.md#sharded-cluster.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, ExitStack
from math import inf
from typing import Any, Final, Protocol

import structlog
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from router.catalog.cluster import PAUSE_AFTER_REFUSAL, Cluster
from router.counters.loads import MemberLoad, StreamLoads
from router.limits.token_bucket import TokenBucket
from router.stream_settings import StreamSettings
from shard_client.backoff import Backoff
from shard_client.bson.resume_token import next_tick
from shard_client.errors import CommandError, ErrorCode, NetworkError, ProtocolError, blames_member
from shard_client.wire.connection import Address, Connection

log = structlog.get_logger()

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
"""Seconds without no-op writes after a failed one; the pause doubles with each failure."""

_TAKES = 0.001
"""Initial estimate of the seconds that a no-op write takes; replaced by a moving average."""
_AVERAGED_WRITES = 8
"""Number of no-op writes over which that average is taken."""

_MOST_MS = 1000
"""Milliseconds that a member may take to replicate a no-op, or to wait for a cluster time."""

NOOP_BYTES: Final = 101
"""Size of one no-op in an oplog, as measured on a mongod 6.0."""
LEAST_SECONDS: Final = 3 * 24 * 60 * 60.0
"""Minimum time that an oplog must cover if only no-op writes are written to it."""

_NOT_ALLOWED = frozenset(
    {ErrorCode.Unauthorized, ErrorCode.CommandNotFound, ErrorCode.IllegalOperation}
)


class NoOpClient(Protocol):
    """Requests no-op writes for its remotes, by number."""

    def confirm_noop(self, number: int) -> Timestamp | None:
        """Confirm a request: return the time past which to move the member, or None to withdraw it.

        Called when the member's budget allows the write. Nothing more is called for a withdrawn
        request; if no other is left, nothing is sent.
        """

    def noop_sent(self, number: int, past: Timestamp, takes: float) -> None:
        """Record that the write past this time is sent, which should take ``takes`` seconds."""

    def noop_done(self, number: int, *, moved: bool) -> None:
        """Record the result of the request.

        ``moved`` is whether the member's oplog is known to be past the time, though a majority may
        not have replicated that yet.
        """


class NoOpWriter:
    """Writes no-ops to the cluster's members for all streams of the process.

    At most one no-op write is in flight per member, and each takes a token of the member's bucket;
    requests made meanwhile share the next one. A member that refuses no-op writes gets a read
    instead. ``loads`` counts the commands sent to each member.
    """

    def __init__(self, cluster: Cluster, settings: StreamSettings, loads: StreamLoads) -> None:
        self._cluster = cluster
        self._settings = settings
        self._loads = loads
        self._targets: dict[str, NoOpTarget] = {}

    def target_at(self, name: str, host: str) -> "NoOpTarget":
        """Return the no-op writes of the replica set ``name``, which are sent to it at ``host``.

        That is its host string, for a shard that is not in the shard list (yet).
        """
        target = self._targets.get(name)
        if target is None:
            load = self._loads.of(name)
            target = self._targets[name] = NoOpTarget(self._cluster, self._settings, load, name)
        target.host = host
        return target

    async def close(self) -> None:
        """End the no-op writes in flight."""
        for target in self._targets.values():
            await target.close()


class NoOpTarget:
    """The no-op writes of one replica set, each of which takes a token of its ``budget``."""

    def __init__(
        self, cluster: Cluster, settings: StreamSettings, load: MemberLoad, name: str
    ) -> None:
        self.host = ""
        self._takes = _TAKES
        self.budget = TokenBucket(settings.noops_per_second, settings.noop_burst)
        self._cluster = cluster
        self._noop_share = settings.noop_share
        self._timeout = settings.connect_timeout
        self._name = name
        self._load = load
        self._waiting: list[tuple[NoOpClient, int]] = []
        self._task: asyncio.Task[None] | None = None
        self._primary: Address | None = None
        self._oplog_asked: Address | None = None
        self._not_before = -inf
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._refused_until: float | None = None
        """Until when the member gets reads; None if it has not refused a no-op write."""
        self._failing = False

    def next_done(self, now: float) -> float:
        """Return the time at which a write with the next token to come should be done."""
        return self.budget.next_start(now) + self._takes

    def request(self, client: NoOpClient, number: int) -> None:
        """Request a no-op write for the remote ``number`` of ``client``."""
        self._waiting.append((client, number))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"write no-ops to {self._name}"
            )

    async def close(self) -> None:
        """End a no-op write in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._wait_for_turn()
                    await self._serve()
                except Exception:  # later requests are served all the same
                    log.exception("no-op write failed", target=self._name)
                    await asyncio.sleep(self._backoff.next_pause())
        finally:
            self._task = None

    async def _serve(self) -> None:
        """Make one no-op write for the requests so far that are still wanted; report its result."""
        waiting, self._waiting = dict.fromkeys(self._waiting, Timestamp(0, 0)), []
        moved = False
        try:
            for client, number in list(waiting):
                if (past := client.confirm_noop(number)) is None:
                    del waiting[client, number]
                else:
                    waiting[client, number] = past
            if waiting:
                self.budget.spend(asyncio.get_running_loop().time())
                for (client, number), past in waiting.items():
                    client.noop_sent(number, past, self._takes)
                moved = await self._attempt(max(waiting.values()))
        finally:
            with ExitStack() as results:  # one that raises keeps its own from no other client
                for client, number in waiting:
                    results.callback(client.noop_done, number, moved=moved)
        await self._learn_oplog_size()

    async def _attempt(self, past: Timestamp) -> bool:
        """Move the member past a time; return whether it is known to be. Pause after a failure."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            moved = await self._write_or_read(past)
        except (CommandError, NetworkError, ProtocolError) as error:
            report = log.debug if self._failing else log.info
            report("no-op write failed", target=self._name, error=str(error))
            self._failing = True
            self._not_before = loop.time() + self._backoff.next_pause()
            return False
        self._failing = False
        self._backoff.reset()
        self._takes += (loop.time() - begun - self._takes) / _AVERAGED_WRITES
        return moved

    async def _wait_for_turn(self) -> None:
        """Wait until the member may get a no-op write."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            turn = max(self._not_before, self.budget.ready_at(now))
            if turn <= now:
                return
            await asyncio.sleep(turn - now)

    async def _write_or_read(self, past: Timestamp) -> bool:
        """Send one no-op write, or a read if the member refuses no-op writes.

        The command is repeated at once if the connection was cut unnoticed, or if the member is no
        longer the primary. Return whether the member's oplog is known to be past the time, which a
        read does not show. Raises CommandError, NetworkError or ProtocolError.
        """
        now, refused_until = asyncio.get_running_loop().time(), self._refused_until
        by_noop, repeated = refused_until is None or now >= refused_until, False
        while True:
            try:
                await self._send(past, by_noop=by_noop)
            except (CommandError, NetworkError, ProtocolError) as error:
                code = error.code if isinstance(error, CommandError) else None
                if code == ErrorCode.StaleClusterTime:
                    return True  # it was there already
                if code in _NOT_ALLOWED and by_noop:
                    report = log.info if refused_until is None else log.debug
                    report(
                        "the member refuses no-op writes; the router reads from it instead",
                        target=self._name,
                        error=str(error),
                    )
                    self._refused_until, by_noop = now + PAUSE_AFTER_REFUSAL, False
                elif repeated or not blames_member(error):
                    raise
                else:
                    repeated = True
            else:
                if by_noop:
                    self._refused_until = None
                return by_noop

    async def _send(self, past: Timestamp, *, by_noop: bool) -> None:
        clock = self._cluster.clock
        command = self._noop_command(past) if by_noop else self._read_command(past)
        if clock.raw is not None:
            command["$clusterTime"] = RawBSONDocument(clock.raw)
        async with self._lend() as connection:
            self._primary = connection.address
            self._load.noop_commands += 1
            answer = await connection.command("admin", command, timeout=self._timeout)
            clock.advance(answer.get("$clusterTime"))
            if by_noop:
                self._load.noop_writes += 1
                self._load.noop_write_bytes += NOOP_BYTES
            if (unreplicated := answer.get("writeConcernError")) is not None:
                raise CommandError.from_reply(unreplicated)

    def _lend(self) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection to the primary for a block."""
        return self._cluster.lend(self._name, self.host, timeout=self._timeout, greet=False)

    @staticmethod
    def _noop_command(past: Timestamp) -> dict[str, Any]:
        """Return the command that writes a no-op after a time."""
        return {
            "appendOplogNote": 1,
            "maxClusterTime": next_tick(past),
            "data": {"msg": "mergerouter"},
            "writeConcern": {"w": "majority", "wtimeout": _MOST_MS},
        }

    def _read_command(self, past: Timestamp) -> dict[str, Any]:
        """Return a read that matches nothing; any user that may read any database may run it."""
        concern: dict[str, Any] = {"level": "majority"}
        time = self._cluster.clock.time
        if time is not None:
            # The member refuses an afterClusterTime beyond its own cluster time.
            concern["afterClusterTime"] = min(time, next_tick(past))
        return {
            "find": "nothing",
            "limit": 1,
            "singleBatch": True,
            "readConcern": concern,
            "maxTimeMS": _MOST_MS,
        }

    async def _learn_oplog_size(self) -> None:
        """Limit the budget by the maximum size of the primary's oplog.

        Each primary is asked until it has answered or refused.
        """
        if self._primary == self._oplog_asked:
            return
        asked, answer = {"collStats": "oplog.rs"}, dict[str, Any]()
        try:
            async with self._lend() as connection:
                answer = await connection.command("local", asked, timeout=self._timeout)
        except (CommandError, NetworkError) as error:
            log.info("cannot read the size of the oplog", target=self._name, error=str(error))
            if blames_member(error):
                return
        self._oplog_asked = self._primary
        size = answer.get("maxSize")
        if isinstance(size, int | float) and size > 0:
            most = size / (LEAST_SECONDS * NOOP_BYTES) * self._noop_share
            self.budget.limit(asyncio.get_running_loop().time(), most)
