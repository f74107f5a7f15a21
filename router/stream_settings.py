"""All settings of streams and their defaults, in one place."""

from dataclasses import dataclass

from shard_client.remote_cursor.remote_settings import RemoteSettings
from shard_client.replica_set.read_preference import LOCAL_THRESHOLD
from shard_client.wire.connection_pool import PoolLimits

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Bounds of a merged stream. Times in seconds, sizes in bytes (docs/design.md, section 6)."""

    remote_buffer_bytes: int = 16 * _MIB
    """Events buffered for one remote before its prefetch pauses."""
    stream_buffer_bytes: int = 64 * _MIB
    """Events buffered for one merged cursor before prefetch pauses everywhere but at the gate; half
    of it is shared evenly among the remotes."""
    total_buffer_bytes: int = 1024 * _MIB
    """Events held for all streams together before a remote may only fetch when none of its own are
    buffered."""
    batch_target_bytes: int = 4 * _MIB
    """Size that a batch of a backlog should have; batchSize is adapted to it. Fewer, larger batches
    wake the shards less often. Smaller where many shards share the stream's buffer."""
    reply_bytes: int = 16 * _MIB
    """Most events in one reply to a client."""
    reply_target_bytes: int = 4 * _MIB
    """Size at which a reply goes to a client that has not said how many events it wants; the same
    is merged ahead. It is large enough to make little of what a reply costs, and leaves the client
    something to do while the next one is made."""
    replies_bytes: int = 128 * _MIB
    """Events in all clients' replies together: who shares a stream gets its share at a time."""
    share: bool = True
    """Whether clients of identical streams share remotes and what these send
    (docs/design.md, section 10)."""
    share_log_bytes: int = 16 * _MIB
    """Events that the clients of one stream may lie apart: kept for the slower of them, and for
    those that resume."""
    share_alone_bytes: int = _MIB
    """The same while there is one client: for its resuming."""
    share_behind: float = 15.0
    """How far a stream may be behind the place where a client starts that is to share it."""
    share_linger: float = 1.0
    """How long the remotes of a stream outlive its last client."""
    departure_interval: float = 1.0
    """How often the shard list is read while a shard drains."""
    await_quiet: float = 1.0
    """How long a shard's getMore may wait for events (awaitQuietMs): this decides what an idle
    stream costs. mongos has its shards wait for as long."""
    look_worth: float = 0.004
    """Where a getMore's wait ends so much later than events need its promise, a progress cursor is
    asked."""
    look_share: float = 0.05
    """Part of the time for which a progress cursor may keep its member busy."""
    look_burst: float = 0.25
    """Time for which it may do so at once after a time with little of it."""
    active_for: float = 0.004
    """A stream is active while its events come less than this apart."""
    await_unknown: float = 0.01
    """How long a getMore may wait where it is not known whether the member waits or reads its
    oplog."""
    await_gate: float = 0.001
    """The same for a remote whose promise events wait for, at first; doubles while in vain."""
    await_gate_max: float = 0.05
    """Bound of that doubling."""
    linger: float = 5.0
    """How long remotes are read on after a client's last getMore; then prefetch stops."""
    connect_timeout: float = 5.0
    """Time for one attempt to connect to a member and say hello."""
    open_timeout: float = 30.0
    """Time for all remotes of a new stream to answer, unreachable shards included."""
    reply_timeout: float = 5.0
    """How late a member's reply may be before it is asked whether it is still there."""
    failure_timeout: float = 30.0
    """How long a failed remote is tried again before the client gets a retriable error."""
    close_timeout: float = 2.0
    """Time for cursors on shards to be killed when a stream is closed."""
    backoff_first: float = 0.01
    """Longest first pause before a failed remote is opened again; doubles with each failure."""
    backoff_max: float = 2.0
    """Bound of that doubling."""
    nudge: bool = True
    """Whether idle members are nudged at all (docs/design.md, section 9)."""
    nudge_delay: float = 0.0
    """How long events wait for an idle member before it is nudged (idleShardNudgeMs)."""
    nudges_per_second: float = 20.0
    """Nudges a second that one member may get for any length of time, over all streams; 0: none
    (idleShardNudgesPerSecond)."""
    nudge_burst: float = 100.0
    """Nudges that one member may get at once after a time with few (idleShardNudgeBurst)."""
    nudge_share: float = 1.0
    """This process's part of what all workers' notes may take of a member's oplog."""
    promise_timeout: float = 5.0
    """How long a member's promise may stay behind a note that a majority has, before the stream is
    read from another member (promiseTimeoutMs); 0: for ever."""
    cursor_timeout: float = 600.0
    """How long an idle cursor outside a session lives (cursorTimeoutMillis)."""
    session_timeout: float = 1800.0
    """How long an idle cursor of a session lives (localLogicalSessionTimeoutMinutes)."""
    max_cursors: int = 10_000
    """Merged cursors open at a time."""
    max_cursors_per_client: int = 5_000
    """The same of one client's address."""
    max_streams: int = 500
    """Different streams open at a time: each has a cursor on every member, and a connection to
    every shard while it is read (docs/connections.md)."""
    max_streams_per_client: int = 250
    """The same for one client's address."""
    member_connections: int = 1000
    """Connections to one member (ShardingTaskExecutorPoolMaxSize)."""
    idle_connection: float = 300.0
    """How long an idle connection is kept (ShardingTaskExecutorPoolHostTimeoutMS)."""
    local_threshold: float = LOCAL_THRESHOLD
    """How much longer than the nearest member's the round trip of one may be that is read from."""

    @property
    def pool(self) -> PoolLimits:
        """What one pool's connections to a member are bounded by."""
        most = self.member_connections
        brief = max(1, min(PoolLimits().most_brief, most // 4))
        return PoolLimits(most, idle_time=self.idle_connection, most_brief=brief)

    @property
    def streams_by_connections(self) -> int:
        """Streams that leave enough of the connections to a member for what takes a moment."""
        return max(1, self.member_connections - self.pool.most_brief - 1)

    @property
    def nudges(self) -> bool:
        """Whether idle members are nudged."""
        return self.nudge and self.nudges_per_second > 0

    def remote_settings(self, batch_bytes: int) -> RemoteSettings:
        """Return what of this concerns one remote cursor with batches of ``batch_bytes``."""
        return RemoteSettings(
            batch_target_bytes=batch_bytes,
            await_time=self.await_unknown,
            connect_timeout=self.connect_timeout,
            reply_timeout=self.reply_timeout,
            failure_timeout=self.failure_timeout,
            close_timeout=self.close_timeout,
            backoff_first=self.backoff_first,
            backoff_max=self.backoff_max,
        )
