"""The start parameters (``--setParameter``); their names are mongos's where it has them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from router.client_limits import ClientLimits
from router.config.parameter import (
    MILLISECONDS,
    MINUTES,
    Parameter,
    boolean,
    of_limits,
    one_of,
    whole,
)
from router.config.problems import nearest
from router.stream_settings import StreamSettings
from shard_client.wire.frames import MAX_MESSAGE_SIZE

_DEFAULTS = StreamSettings()
_of_limits = partial(of_limits, _DEFAULTS)
_of_clients = partial(of_limits, ClientLimits())

_ALL = (
    Parameter(
        "enableTestCommands",
        boolean,
        False,
        "Allows commands that only tests may use, such as configureFailPoint.",
    ),
    Parameter(
        "userCacheInvalidationIntervalSecs",
        whole,
        30,
        "Time between two readings of the users' privileges, if the router may not ask the config "
        "server whether they have changed; it asks every two seconds, or more often.",
        least=1,
        most=86_400,
    ),
    _of_clients(
        "authFailedDelayMs",
        "failed_login_delay",
        "Wait before a refused login is answered.",
        unit=MILLISECONDS,
        most=5000,
    ),
    _of_clients(
        "preAuthMaximumMessageSizeBytes",
        "message_size_before_login",
        "Size of a message before the login.",
        least=1024,
    ),
    _of_clients(
        "preAuthIdleTimeoutMs",
        "idle_before_login",
        "Time between two messages of a client that has not logged in.",
        unit=MILLISECONDS,
        least=100,
    ),
    _of_clients(
        "loginTimeoutMs",
        "login_time",
        "Time for a client's first message, and for a login that has begun.",
        unit=MILLISECONDS,
        least=100,
    ),
    _of_clients(
        "messageTimeoutMs",
        "message_time",
        "Time for a message that has begun; time in which a client must read some of a reply.",
        unit=MILLISECONDS,
        least=100,
    ),
    _of_clients(
        "messagesBytes",
        "messages_bytes",
        "Messages above 64 KiB of all clients until they are answered; further ones wait.",
        least=2 * MAX_MESSAGE_SIZE,
    ),
    _of_clients("maxLoginsInProgress", "logins_in_progress", "Logins in progress.", least=1),
    _of_clients(
        "maxConnectionsPerClient",
        "connections_per_client",
        "Connections of one client's address; 0: four fifths of all.",
    ),
    Parameter(
        "mongosShutdownTimeoutMillisForSignaledShutdown",
        whole,
        3000,
        "Time after SIGTERM in which commands in flight may end.",
        most=600_000,
    ),
    _of_limits(
        "cursorTimeoutMillis",
        "cursor_timeout",
        "Lifetime of an idle cursor outside sessions.",
        unit=MILLISECONDS,
        least=1,
    ),
    _of_limits(
        "localLogicalSessionTimeoutMinutes",
        "session_timeout",
        "Lifetime of the cursors of an idle session.",
        unit=MINUTES,
        least=1,
    ),
    _of_limits("maxCursors", "max_cursors", "Change stream cursors open at a time.", least=1),
    _of_limits(
        "maxCursorsPerClient",
        "max_cursors_per_client",
        "Change stream cursors of one client's address.",
        least=1,
    ),
    _of_limits(
        "maxCursorsPerUser",
        "max_cursors_per_user",
        "Cursors of one user, where clients log in.",
        least=1,
    ),
    _of_limits(
        "maxStreams",
        "max_streams",
        "Different streams open at a time; clients with identical requests share one.",
        least=1,
    ),
    _of_limits(
        "maxStreamsPerClient",
        "max_streams_per_client",
        "Different streams of one client's address.",
        least=1,
    ),
    _of_limits(
        "maxStreamsPerUser",
        "max_streams_per_user",
        "Different streams opened by one user, where clients log in.",
        least=1,
    ),
    _of_limits(
        "ShardingTaskExecutorPoolMaxSize",
        "member_connections",
        "Connections to one member of a replica set.",
        least=4,
    ),
    _of_limits(
        "ShardingTaskExecutorPoolHostTimeoutMS",
        "idle_connection",
        "Lifetime of an idle connection to a member.",
        unit=MILLISECONDS,
    ),
    _of_limits(
        "noopWrites",
        "noop",
        "Whether members without writes get no-op writes, so that streams need not wait for them.",
    ),
    _of_limits(
        "noopWriteDelayMs",
        "noop_delay",
        "How long events wait for an idle member before it gets a no-op write.",
        unit=MILLISECONDS,
    ),
    _of_limits(
        "noopWritesPerSecond",
        "noops_per_second",
        "Sustained no-op writes per second to one member, over all streams; 0 for none.",
        most=1000,
    ),
    _of_limits(
        "noopWriteBurst",
        "noop_burst",
        "No-op writes that one member may get in a burst after a period with few.",
        least=1,
        most=100_000,
    ),
    _of_limits(
        "watermarkTimeoutMs",
        "watermark_timeout",
        "How long a member may lag behind a no-op write that a majority has, before the stream "
        "reads another member; 0 for no limit.",
        unit=MILLISECONDS,
    ),
    _of_limits(
        "remoteBufferBytes",
        "remote_buffer_bytes",
        "Events held for one shard of a stream; beyond it, the shard is not read.",
        least=1,
    ),
    _of_limits(
        "streamBufferBytes",
        "stream_buffer_bytes",
        "Events held for one stream; beyond it, only the slowest shard is read.",
        least=1,
    ),
    _of_limits(
        "totalBufferBytes",
        "total_buffer_bytes",
        "Events held for all streams; beyond it, only empty buffers are filled.",
        least=1,
    ),
    _of_limits(
        "userBufferBytes",
        "user_buffer_bytes",
        "Events held for the streams of one user, where clients log in; beyond it, only their "
        "empty buffers are filled; 0: four fifths of totalBufferBytes.",
    ),
    _of_limits(
        "replyTargetBytes",
        "reply_target_bytes",
        "Size of a reply to a client that sets no batchSize.",
        least=1,
    ),
    _of_limits(
        "repliesBytes", "replies_bytes", "Events in the replies to all clients together.", least=1
    ),
    _of_limits(
        "shareStreams", "share", "Whether clients with identical requests share one stream."
    ),
    _of_limits(
        "shareLogBytes", "share_log_bytes", "How far the clients of one shared stream may be apart."
    ),
    _of_limits(
        "shareAloneBytes",
        "share_alone_bytes",
        "Events kept for the only client of a stream, so that it can resume.",
    ),
    _of_limits(
        "shareLingerMs",
        "share_linger",
        "How long a stream stays open after its last client has left.",
        unit=MILLISECONDS,
    ),
    Parameter(
        "shareFilters",
        one_of("auto", "always", "never"),
        _DEFAULTS.share_filters,
        "Whether the router evaluates filters on a shared stream.",
        limit="share_filters",
    ),
    _of_limits(
        "shareFiltersFrom",
        "share_filters_from",
        "Number of different filters on one scope from which on they share a stream.",
        least=2,
    ),
    Parameter(
        "shareScopes",
        one_of("auto", "always", "never"),
        _DEFAULTS.share_scopes,
        "Whether streams of collections and databases are read as parts of a wider stream.",
        limit="share_scopes",
    ),
    _of_limits(
        "shareScopesFrom",
        "share_scopes_from",
        "Number of different collections of one database, or of different databases, from which "
        "on their streams share a wider one.",
        least=2,
    ),
    _of_limits(
        "shareFilterBytes",
        "share_filter_bytes",
        "Events that clients of filtered streams have not read, for each shared stream.",
    ),
    _of_limits(
        "batchTargetBytes",
        "batch_target_bytes",
        "Target size of a batch from a shard while there is a backlog.",
        least=1,
    ),
    _of_limits(
        "awaitQuietMs",
        "await_quiet",
        "How long a getMore on a shard waits for events.",
        unit=MILLISECONDS,
        least=50,
    ),
    _of_limits(
        "connectTimeoutMs",
        "connect_timeout",
        "Time limit of one attempt to connect to a member.",
        unit=MILLISECONDS,
        least=100,
    ),
    _of_limits(
        "openTimeoutMs",
        "open_timeout",
        "Time limit for opening a stream on all shards.",
        unit=MILLISECONDS,
        least=100,
    ),
    _of_limits(
        "replyTimeoutMs",
        "reply_timeout",
        "How late a member's reply may be before the member is checked.",
        unit=MILLISECONDS,
        least=100,
    ),
    _of_limits(
        "failureTimeoutMs",
        "failure_timeout",
        "How long a failed document lookup, removed shard, or shard of a stream of one shard is "
        "retried before clients get a retriable error.",
        unit=MILLISECONDS,
    ),
)

PARAMETERS: Mapping[str, Parameter] = {parameter.name: parameter for parameter in _ALL}
"""Every start parameter by name."""

FORMER_NAMES: Mapping[str, str] = {
    "idleShardNudge": "noopWrites",
    "idleShardNudgeMs": "noopWriteDelayMs",
    "idleShardNudgesPerSecond": "noopWritesPerSecond",
    "idleShardNudgeBurst": "noopWriteBurst",
    "promiseTimeoutMs": "watermarkTimeoutMs",
}
"""The present names of parameters by their former ones, which the next release does not accept."""


def parse_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters by name: those ``given`` parsed, the others at their defaults.

    Raises:
        ValueError: an unknown name, a parameter under both its names, or a bad value.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        present = FORMER_NAMES.get(name, name)
        if present not in PARAMETERS:
            raise ValueError(f"{name} is not a parameter.{nearest(name, PARAMETERS)}")
        if present != name and present in given:
            raise ValueError(f"{name} is the former name of {present}: set only {present}")
        values[present] = value
    return {
        name: parameter.parse(values[name]) if name in values else parameter.default
        for name, parameter in PARAMETERS.items()
    }


def stream_limits(values: Mapping[str, Any]) -> StreamSettings:
    """Return the stream settings that the parsed parameters set."""
    return StreamSettings(**_chosen(values, of_clients=False))


def client_limits(values: Mapping[str, Any]) -> ClientLimits:
    """Return the limits of clients that the parsed parameters set; the others at their defaults."""
    return ClientLimits(**_chosen(values, of_clients=True))


def _chosen(values: Mapping[str, Any], *, of_clients: bool) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, parameter in PARAMETERS.items():
        if parameter.limit is not None and parameter.of_clients == of_clients:
            value = values[name]
            scaled = isinstance(value, float)
            chosen[parameter.limit] = value * parameter.unit if scaled else value
    return chosen
