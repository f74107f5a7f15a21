"""The settings of streams and their defaults.

Times are in seconds, sizes in bytes. Operators set those that are declared as parameters; the
others are tuned here, or computed for one process of several (``settings_of_process``).
"""

from dataclasses import dataclass, replace
from typing import Final, Literal

from router.parameter import MINUTES, milliseconds, parameter
from shard_client.remote_cursor.remote_settings import RemoteSettings
from shard_client.replica_set.replica_set import LOCAL_THRESHOLD, PRIMARY, ReadPreference
from shard_client.wire.connection_pool import PoolLimits

_MIB = 1024 * 1024
_SHARE_OF_ONE = 0.8
_SELECTION = 15.0
_Mode = Literal["auto", "always", "never"]


@dataclass(frozen=True)
class StreamSettings(RemoteSettings):
    """All settings of streams."""

    # The cursors on members, and the connections to them (docs/connections.md).

    batch_target_bytes: int = parameter(
        "batchTargetBytes",
        RemoteSettings.batch_target_bytes,
        "Target size of a batch from a shard while there is a backlog.",
        least=1,
    )
    connect_timeout: float = milliseconds(
        "connectTimeoutMs",
        RemoteSettings.connect_timeout,
        "Time limit of one attempt to connect to a member.",
        least=100,
    )
    reply_timeout: float = milliseconds(
        "replyTimeoutMs",
        RemoteSettings.reply_timeout,
        "How late a member's reply may be before the member is checked.",
        least=100,
    )
    failure_timeout: float = milliseconds(
        "failureTimeoutMs",
        RemoteSettings.failure_timeout,
        "How long a failed document lookup, removed shard, or shard of a stream of one shard is "
        "retried before clients get a retriable error.",
    )

    open_timeout: float = milliseconds(
        "openTimeoutMs", 30.0, "Time limit for opening a stream on all shards.", least=100
    )
    """For all remotes of a new stream to answer, unreachable shards included."""

    def opening_time(self, preference: ReadPreference) -> float:
        """Return the seconds for opening a stream that reads the members of ``preference``.

        Where it is not the primaries, no member may ever suit: as much as mongos waits for one.
        """
        most = _SELECTION if preference.mode != PRIMARY.mode else self.open_timeout
        return min(self.open_timeout, most)

    member_connections: int = parameter(
        "ShardingTaskExecutorPoolMaxSize",
        1000,
        "Connections to one member of a replica set.",
        least=4,
    )
    idle_connection: float = milliseconds(
        "ShardingTaskExecutorPoolHostTimeoutMS",
        300.0,
        "Lifetime of an idle connection to a member, but for two.",
    )
    local_threshold: float = LOCAL_THRESHOLD
    """Latency window: how much the round trip of a selected member may exceed the nearest one's."""

    @property
    def pool(self) -> PoolLimits:
        """The limits of a connection pool."""
        most = self.member_connections
        brief = max(1, min(PoolLimits().most_brief, most // 4))
        # A no-op write and a getMore after a quiet time wait for no connection.
        return PoolLimits(most, idle_time=self.idle_connection, most_brief=brief, kept=2)

    # How far ahead one stream is read, how long its getMores wait, and which no-ops are written
    # (docs/design.md#a-remote-cursor, docs/design.md#idle-shards).

    remote_buffer_bytes: int = parameter(
        "remoteBufferBytes",
        16 * _MIB,
        "Events held for one shard of a stream; beyond it, the shard is not read.",
        least=1,
    )
    stream_buffer_bytes: int = parameter(
        "streamBufferBytes",
        64 * _MIB,
        "Events held for one stream; beyond it, only the slowest shard is read.",
        least=1,
    )
    """Half of it is divided evenly among the remotes."""
    first_ahead_bytes: int = 256 * 1024
    """Bytes of events buffered for one merged stream before its clients have taken any. What they
    take adds twice its size, so a client that leaves soon causes little reading ahead."""
    prefetch_time: float = 5.0
    """How long prefetch continues after a client's last getMore."""
    await_quiet: float = milliseconds(
        "awaitQuietMs", 1.0, "How long a getMore on a shard waits for events.", least=50
    )
    """It determines the cost of an idle stream. mongos uses the same wait."""
    await_watermark: float = 0.001
    """First wait of a getMore to a remote whose watermark events need; doubles until the watermark
    arrives."""
    await_watermark_max: float = 0.05
    """Upper bound of that doubling."""
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
    noop_writes: bool = parameter(
        "noopWrites",
        True,
        "Whether members without writes get no-op writes, so that streams need not wait for them.",
    )
    noop_delay: float = milliseconds(
        "noopWriteDelayMs",
        0.0,
        "How long events wait for an idle member before it gets a no-op write.",
    )
    noops_per_second: float = parameter(
        "noopWritesPerSecond",
        20.0,
        "Sustained no-op writes per second to one member, over all streams; 0 for none.",
        most=1000,
    )
    noop_burst: float = parameter(
        "noopWriteBurst",
        100.0,
        "No-op writes that one member may get in a burst after a period with few.",
        least=1,
        most=100_000,
    )
    noop_share: float = 1.0
    """This process's fraction of the no-op writes that the router may send to a member."""
    watermark_timeout: float = milliseconds(
        "watermarkTimeoutMs",
        5.0,
        "How long a member may lag behind a no-op write that a majority has, before the stream "
        "reads another member; 0 for no limit.",
    )

    @property
    def writes_noops(self) -> bool:
        """Whether idle members get no-op writes."""
        return self.noop_writes and self.noops_per_second > 0

    # Which clients share streams, and what is kept for them (docs/sharing.md).

    share: bool = parameter(
        "shareStreams", True, "Whether clients with identical requests share one stream."
    )
    """See docs/design.md#many-clients."""
    share_log_bytes: int = parameter(
        "shareLogBytes", 16 * _MIB, "How far the clients of one shared stream may be apart."
    )
    """Events are kept for slower clients and for those that resume."""
    share_alone_bytes: int = parameter(
        "shareAloneBytes",
        _MIB,
        "Events kept for the only client of a stream, so that it can resume.",
    )
    share_behind: float = 15.0
    """How far a stream may be behind the start of a client that would share it."""
    share_filters: str = parameter(
        "shareFilters",
        "auto",
        "Whether the router evaluates filters on a shared stream.",
        kind=_Mode,
    )
    share_filters_from: int = parameter(
        "shareFiltersFrom",
        4,
        "Number of different filters on one scope from which on they share a stream.",
        least=2,
    )
    share_filters_hold: float = 10.0
    """How long there are fewer than half as many filters or scopes before auto stops sharing."""
    share_scopes: str = parameter(
        "shareScopes",
        "auto",
        "Whether streams of collections and databases are read as parts of a wider stream.",
        kind=_Mode,
    )
    share_scopes_from: int = parameter(
        "shareScopesFrom",
        5,
        "Number of different collections of one database, or of different databases, from which "
        "on their streams share a wider one.",
        least=2,
    )
    """They stop sharing it after ``share_filters_hold`` with fewer than half as many."""
    share_filter_bytes: int = parameter(
        "shareFilterBytes",
        64 * _MIB,
        "Events that clients of filtered streams have not read, for each shared stream.",
    )
    share_linger: float = milliseconds(
        "shareLingerMs", 1.0, "How long a stream stays open after its last client has left."
    )

    # How many cursors and streams may be open, how long, and how much all of them hold.

    max_cursors: int = parameter(
        "maxCursors", 10_000, "Change stream cursors open at a time.", least=1
    )
    max_cursors_per_client: int = parameter(
        "maxCursorsPerClient", 5_000, "Change stream cursors of one client's address.", least=1
    )
    max_cursors_per_user: int = parameter(
        "maxCursorsPerUser", 8_000, "Cursors of one user, where clients log in.", least=1
    )
    max_streams: int = parameter(
        "maxStreams",
        500,
        "Different streams open at a time; clients with identical requests share one.",
        least=1,
    )
    """Each has a cursor on every member, and a connection to every shard while it is read
    (docs/connections.md)."""
    max_streams_per_client: int = parameter(
        "maxStreamsPerClient", 250, "Different streams of one client's address.", least=1
    )
    max_streams_per_user: int = parameter(
        "maxStreamsPerUser",
        400,
        "Different streams opened by one user, where clients log in.",
        least=1,
    )
    cursor_timeout: float = milliseconds(
        "cursorTimeoutMillis", 600.0, "Lifetime of an idle cursor outside sessions.", least=1
    )
    session_timeout: float = parameter(
        "localLogicalSessionTimeoutMinutes",
        1800.0,
        "Lifetime of the cursors of an idle session.",
        unit=MINUTES,
        least=1,
    )
    total_buffer_bytes: int = parameter(
        "totalBufferBytes",
        1024 * _MIB,
        "Events held for all streams; beyond it, only empty buffers are filled.",
        least=1,
    )
    user_buffer_bytes: int = parameter(
        "userBufferBytes",
        0,
        "Events held for the streams of one user, where clients log in; beyond it, only their "
        "empty buffers are filled; 0: four fifths of totalBufferBytes.",
    )

    @property
    def user_buffer(self) -> int:
        """Bytes of events held for one user's streams beyond which they fill empty buffers only."""
        return self.user_buffer_bytes or max(1, int(self.total_buffer_bytes * _SHARE_OF_ONE))

    @property
    def streams_by_connections(self) -> int:
        """Number of streams that leaves enough connections to a member for brief commands."""
        return max(1, self.member_connections - self.pool.most_brief - 1)

    # The sizes of replies to clients.

    reply_bytes: int = 16 * _MIB
    """Maximum bytes of events in one reply to a client."""
    reply_target_bytes: int = 4 * _MIB
    """Size of a reply to a client that sets no batchSize. It makes the cost of a reply small, and
    keeps the client busy while the shards send what comes next."""
    replies_bytes: int = parameter(
        "repliesBytes", 128 * _MIB, "Events in the replies to all clients together.", least=1
    )
    """It is divided evenly among readers."""

    # Document lookups (docs/lookups.md).

    lookup_connections: int = 8
    """Maximum of requests to the upstream in their first second, and of idle connections, over all
    streams."""
    first_lookups: int = 100
    """Events looked up by a stream's first request; later adapted to the documents' sizes."""
    most_lookups: int = 1000
    """Upper bound of the adapted number of events."""
    lookup_bytes: int = 4 * _MIB
    """Target for the total size of the documents of one request."""

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


_DIVIDED: Final = {
    **dict.fromkeys(
        ("total_buffer_bytes", "replies_bytes", "max_cursors", "max_cursors_per_client",
         "max_cursors_per_user", "max_streams", "max_streams_per_client", "max_streams_per_user"),
        1,
    ),
    "user_buffer_bytes": 0,
    "member_connections": 4,
}  # fmt: skip
"""The whole numbers that a router's processes divide, and the least of each process."""


def settings_of_process(settings: StreamSettings, count: int) -> StreamSettings:
    """Return the settings of one of ``count`` processes, which together keep the router's bounds.

    Bounds of a single stream or remote do not change.
    """
    if count == 1:
        return settings

    parts = {name: max(least, getattr(settings, name) // count) for name, least in _DIVIDED.items()}
    return replace(
        settings,
        **parts,
        noops_per_second=settings.noops_per_second / count,
        noop_burst=max(1.0, settings.noop_burst / count),
        noop_share=settings.noop_share / count,
    )
