"""The settings of streams and their defaults, in groups that say what they bound.

Times are in seconds, sizes in bytes. A part of the router is given the group that it needs;
``StreamSettings`` has all of them, so that each can be given the same object.
"""

from dataclasses import dataclass, replace

from router.block_sizes import DEFAULT_BLOCK_SIZES, BlockSizes
from shard_client.remote_cursor.remote_settings import RemoteSettings
from shard_client.replica_set.read_preference import LOCAL_THRESHOLD
from shard_client.wire.connection_pool import PoolLimits

_MIB = 1024 * 1024
_SHARE_OF_ONE = 0.8


@dataclass(frozen=True)
class ConnectionSettings(RemoteSettings):
    """Limits of the connections to members (docs/connections.md)."""

    open_timeout: float = 30.0
    """Time limit for all remotes of a new stream to answer, unreachable shards included."""
    member_connections: int = 1000
    """Maximum number of connections to one member (ShardingTaskExecutorPoolMaxSize)."""
    idle_connection: float = 300.0
    """How long an idle connection is kept (ShardingTaskExecutorPoolHostTimeoutMS)."""
    local_threshold: float = LOCAL_THRESHOLD
    """Latency window: how much the round trip of a selected member may exceed the nearest one's."""

    @property
    def pool(self) -> PoolLimits:
        """The limits of a connection pool."""
        most = self.member_connections
        brief = max(1, min(PoolLimits().most_brief, most // 4))
        return PoolLimits(most, idle_time=self.idle_connection, most_brief=brief)


@dataclass(frozen=True)
class PacingSettings(RemoteSettings):
    """How far ahead one stream is read, how long its getMores wait, and which no-ops are written
    (docs/design.md#a-remote-cursor, docs/design.md#idle-shards)."""

    remote_buffer_bytes: int = 16 * _MIB
    """Bytes of events buffered for one remote before its prefetch pauses."""
    stream_buffer_bytes: int = 64 * _MIB
    """Bytes of events buffered for one merged stream before prefetch pauses for all remotes but the
    slowest shard; half of it is divided evenly among the remotes."""
    first_ahead_bytes: int = 256 * 1024
    """Bytes of events buffered for one merged stream before its clients have taken any. What they
    take adds twice its size, so a client that leaves soon causes little reading ahead."""
    linger: float = 5.0
    """How long prefetch continues after a client's last getMore."""
    await_quiet: float = 1.0
    """How long a shard's getMore may wait for events (awaitQuietMs). It determines the cost of an
    idle stream. mongos uses the same wait."""
    await_watermark: float = 0.001
    """First wait of a getMore to a remote whose watermark events need; doubles until the watermark
    arrives."""
    await_watermark_max: float = 0.05
    """Upper bound of that doubling."""
    active_for: float = 0.004
    """A stream is active while its events arrive at shorter intervals than this."""
    probe_worth: float = 0.004
    """A progress cursor is asked if a getMore's wait ends more than this after events need its
    watermark."""
    probe_share: float = 0.05
    """Fraction of the time for which a progress cursor may keep its member busy."""
    probe_burst: float = 0.25
    """Time for which a progress cursor may keep its member busy without a pause after a period of
    low use."""
    round_interval: float = 0.05
    """Interval of the rounds in which a dense stream reads its members; shorter if more no-op
    writes per second are allowed, one round for each (docs/design.md#dense-streams)."""
    round_burst: float = 20.0
    """Small batches that a stream may receive in a burst before it is read in rounds."""
    noop: bool = True
    """Whether idle members get no-op writes at all (docs/design.md#idle-shards)."""
    noop_delay: float = 0.0
    """How long events wait for an idle member before it gets a no-op write (noopWriteDelayMs)."""
    noops_per_second: float = 20.0
    """Sustained no-op writes per second to one member, over all streams; 0 means no no-op writes
    (noopWritesPerSecond)."""
    noop_burst: float = 100.0
    """No-op writes that a member may get in a burst after a period with few (noopWriteBurst)."""
    noop_share: float = 1.0
    """This process's fraction of the no-op writes that the router may send to a member."""
    watermark_timeout: float = 5.0
    """How long a member's watermark may stay behind a no-op write that a majority has, before the
    stream is read from another member (watermarkTimeoutMs); 0 means without limit."""

    @property
    def noops(self) -> bool:
        """Whether idle members get no-op writes."""
        return self.noop and self.noops_per_second > 0


@dataclass(frozen=True)
class SharingSettings:
    """Which clients share streams, and what is kept for them (docs/sharing.md)."""

    share: bool = True
    """Whether clients of identical streams share remotes and the events that these send
    (docs/design.md#many-clients)."""
    share_log_bytes: int = 16 * _MIB
    """Bytes of events that the clients of one stream may be apart: they are kept for slower clients
    and for those that resume."""
    share_alone_bytes: int = _MIB
    """The same while there is only one client, so that it can resume."""
    share_behind: float = 15.0
    """How far a stream may be behind the start of a client that would share it."""
    share_filters: str = "auto"
    """Whether the router evaluates filters on a shared stream: auto, always or never."""
    share_filters_from: int = 4
    """The number of different filters on one scope from which on auto shares."""
    share_filters_hold: float = 10.0
    """How long there must be less than half as many filters or scopes before auto shares no
    longer."""
    share_scopes: str = "auto"
    """Whether streams of collections and databases are read as parts of a wider stream: auto,
    always or never."""
    share_scopes_from: int = 5
    """The number of different collections of a database, or of different databases, from which on
    auto shares. It shares no longer after ``share_filters_hold`` with less than half as many."""
    share_filter_bytes: int = 64 * _MIB
    """Bytes of memory that the unread events of all filtered readers of a stream may take."""
    share_linger: float = 1.0
    """How long the remotes of a stream stay open after its last client has left."""


@dataclass(frozen=True)
class AdmissionSettings(ConnectionSettings):
    """How many cursors and streams may be open, how long, and how much all of them hold."""

    max_cursors: int = 10_000
    """Maximum number of open merged cursors."""
    max_cursors_per_client: int = 5_000
    """The same for one client's address."""
    max_cursors_per_user: int = 8_000
    """The same for one user, where clients log in."""
    max_streams: int = 500
    """Maximum number of different open streams: each has a cursor on every member, and a connection
    to every shard while it is read (docs/connections.md)."""
    max_streams_per_client: int = 250
    """The same for one client's address."""
    max_streams_per_user: int = 400
    """The same for one user, where clients log in."""
    cursor_timeout: float = 600.0
    """Lifetime of an idle cursor outside a session (cursorTimeoutMillis)."""
    session_timeout: float = 1800.0
    """Lifetime of an idle cursor of a session (localLogicalSessionTimeoutMinutes)."""
    total_buffer_bytes: int = 1024 * _MIB
    """Bytes of events held for all streams together beyond which only remotes with empty buffers
    may fetch."""
    user_buffer_bytes: int = 0
    """The same for the streams that one user has opened; 0: four fifths of all (userBufferBytes).
    Where clients do not log in, it does not apply."""

    @property
    def user_buffer(self) -> int:
        """Bytes of events held for one user's streams beyond which they fill empty buffers only."""
        return self.user_buffer_bytes or max(1, int(self.total_buffer_bytes * _SHARE_OF_ONE))

    @property
    def streams_by_connections(self) -> int:
        """Number of streams that leaves enough connections to a member for brief commands."""
        return max(1, self.member_connections - self.pool.most_brief - 1)


@dataclass(frozen=True)
class ReplySettings:
    """The sizes of replies to clients, and of the blocks in which events are merged for them."""

    reply_bytes: int = 16 * _MIB
    """Maximum bytes of events in one reply to a client."""
    reply_target_bytes: int = 4 * _MIB
    """Size at which a reply is sent to a client that sets no batchSize; as many bytes are merged
    ahead. It is large enough to make the cost of a reply small, and keeps the client busy while the
    next reply is prepared."""
    replies_bytes: int = 128 * _MIB
    """Maximum bytes of events in all clients' replies together, divided evenly among readers."""
    blocks: BlockSizes = DEFAULT_BLOCK_SIZES
    """The sizes into which merged events are divided."""


@dataclass(frozen=True)
class StreamSettings(AdmissionSettings, PacingSettings, SharingSettings, ReplySettings):
    """All settings of streams."""

    one_shard_batch_bytes: int = 256 * 1024
    """Target size of the batches of a stream that one shard alone serves ($_passthroughToShard), of
    which two are buffered. Such a stream has nothing to merge, and its clients often read a part
    of it only, so events that are read ahead may never be needed."""
    removed_shards_interval: float = 1.0
    """Interval at which the shard list is read while a shard drains."""

    def for_one_shard(self) -> "StreamSettings":
        """Return the settings of a stream that one shard alone serves."""
        batch = min(self.one_shard_batch_bytes, self.batch_target_bytes)
        return replace(
            self,
            batch_target_bytes=batch,
            remote_buffer_bytes=min(2 * batch, self.remote_buffer_bytes),
            reply_target_bytes=min(2 * batch, self.reply_target_bytes),
        )
