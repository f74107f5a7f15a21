"""Start parameters (``--setParameter``): names, types, defaults; mongos's own where they exist."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from router.config.problems import nearest
from router.stream_settings import StreamSettings

_DEFAULTS = StreamSettings()
_MS = 0.001
_MINUTES = 60.0
_LONGEST = 365 * 24 * 60 * _MINUTES
"""The longest time that a parameter can set, in seconds."""
_UNBOUNDED = 2**62


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in {"1", "true"}:
        return True
    if text in {"0", "false"}:
        return False
    raise ValueError(f"must be true or false, not {value!r}")


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}")
        return str(value)

    return read


def _whole(value: Any) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ValueError(f"must be a whole number, not {value!r}") from None


def _number(value: Any) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ValueError(f"must be a number, not {value!r}") from None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One start parameter.

    ``limit`` is the field of StreamSettings that it sets. ``unit`` is the parameter's unit,
    expressed in the field's unit (seconds or bytes). ``least`` and ``most`` bound the parameter's
    own value.
    """

    name: str
    read: Callable[[Any], Any]
    default: Any
    purpose: str
    least: float = 0
    most: float = _UNBOUNDED
    limit: str | None = None
    unit: float = 1

    def parse(self, given: Any) -> Any:
        """Return ``given`` as this parameter's type; raises ValueError, which names the fault."""
        try:
            value = self.read(given)
        except ValueError as error:
            raise ValueError(f"parameter {self.name} {error}") from error
        if not isinstance(value, str) and not self.least <= value <= self.most:
            bounds = f"from {self.least:g} to {self.most:g}"
            if self.most >= _UNBOUNDED:
                bounds = f"{self.least:g} or more"
            raise ValueError(f"parameter {self.name} must be {bounds}, not {value}")
        return value


def _of_limits(
    name: str,
    limit: str,
    purpose: str,
    *,
    unit: float = 1,
    least: float = 0,
    most: float | None = None,
) -> Parameter:
    default = getattr(_DEFAULTS, limit)
    read: Callable[[Any], Any] = _whole
    if isinstance(default, bool):
        read = _boolean
    elif isinstance(default, float):
        default = round(default / unit, 6)
        read = _number
    if most is None:
        most = _LONGEST / unit if unit in {_MS, _MINUTES} else _UNBOUNDED
    return Parameter(name, read, default, purpose, least=least, most=most, limit=limit, unit=unit)


_ALL = (
    Parameter("enableTestCommands", _boolean, False, "commands that only tests may use"),
    Parameter(
        "userCacheInvalidationIntervalSecs",
        _whole,
        30,
        "time between two readings of the users' privileges",
        least=1,
        most=86_400,
    ),
    Parameter(
        "authFailedDelayMs", _whole, 500, "wait before a refused login is answered", most=5000
    ),
    Parameter(
        "mongosShutdownTimeoutMillisForSignaledShutdown",
        _whole,
        3000,
        "time for commands in flight to end after SIGTERM",
        most=600_000,
    ),
    _of_limits(
        "cursorTimeoutMillis",
        "cursor_timeout",
        "life of an idle cursor outside sessions",
        unit=_MS,
        least=1,
    ),
    _of_limits(
        "localLogicalSessionTimeoutMinutes",
        "session_timeout",
        "life of an idle session's cursors",
        unit=_MINUTES,
        least=1,
    ),
    _of_limits("maxCursors", "max_cursors", "merged cursors open at a time", least=1),
    _of_limits(
        "maxCursorsPerClient", "max_cursors_per_client", "merged cursors of one client", least=1
    ),
    _of_limits("maxStreams", "max_streams", "different streams open at a time", least=1),
    _of_limits(
        "maxStreamsPerClient",
        "max_streams_per_client",
        "different streams opened by one client",
        least=1,
    ),
    _of_limits(
        "ShardingTaskExecutorPoolMaxSize",
        "member_connections",
        "connections to one member",
        least=4,
    ),
    _of_limits(
        "ShardingTaskExecutorPoolHostTimeoutMS",
        "idle_connection",
        "life of an idle connection to a member",
        unit=_MS,
    ),
    _of_limits("idleShardNudge", "nudge", "whether idle members are nudged"),
    _of_limits("idleShardNudgeMs", "nudge_delay", "wait before an idle member is nudged", unit=_MS),
    _of_limits(
        "idleShardNudgesPerSecond",
        "nudges_per_second",
        "nudges of one member for any length of time; 0: none",
        most=1000,
    ),
    _of_limits(
        "idleShardNudgeBurst",
        "nudge_burst",
        "nudges of one member at once after a time with few",
        least=1,
        most=100_000,
    ),
    _of_limits(
        "promiseTimeoutMs",
        "promise_timeout",
        "a member may not show a majority's note for so long; 0: for ever",
        unit=_MS,
    ),
    _of_limits("remoteBufferBytes", "remote_buffer_bytes", "buffer of one remote", least=1),
    _of_limits("streamBufferBytes", "stream_buffer_bytes", "buffer of one stream", least=1),
    _of_limits("totalBufferBytes", "total_buffer_bytes", "buffer of all streams", least=1),
    _of_limits("replyTargetBytes", "reply_target_bytes", "size of replies without limit", least=1),
    _of_limits("repliesBytes", "replies_bytes", "events in all clients' replies", least=1),
    _of_limits("shareStreams", "share", "whether identical streams share remotes"),
    _of_limits(
        "shareLogBytes", "share_log_bytes", "events that one stream's clients may lie apart"
    ),
    _of_limits(
        "shareAloneBytes", "share_alone_bytes", "events kept for a lone client that resumes"
    ),
    _of_limits("shareLingerMs", "share_linger", "remotes outlive a stream's last client", unit=_MS),
    Parameter(
        "shareFilters",
        _one_of("auto", "always", "never"),
        _DEFAULTS.share_filters,
        "whether the router evaluates filters on a shared stream",
        limit="share_filters",
    ),
    _of_limits(
        "shareFiltersFrom",
        "share_filters_from",
        "different filters on one scope from which on they share a stream",
        least=2,
    ),
    _of_limits(
        "shareFilterBytes", "share_filter_bytes", "unread events of a stream's filtered readers"
    ),
    _of_limits("batchTargetBytes", "batch_target_bytes", "size of a shard's batch", least=1),
    _of_limits(
        "awaitQuietMs", "await_quiet", "a shard's getMore waits for events", unit=_MS, least=50
    ),
    _of_limits(
        "connectTimeoutMs", "connect_timeout", "one attempt to connect", unit=_MS, least=100
    ),
    _of_limits(
        "openTimeoutMs", "open_timeout", "opening all remotes of a stream", unit=_MS, least=100
    ),
    _of_limits("replyTimeoutMs", "reply_timeout", "a member's reply", unit=_MS, least=100),
    _of_limits("failureTimeoutMs", "failure_timeout", "retrying a failed remote", unit=_MS),
)

PARAMETERS: Mapping[str, Parameter] = {parameter.name: parameter for parameter in _ALL}
"""Every start parameter by name."""


def parse_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters by name: those ``given`` parsed, the others at their defaults.

    Raises:
        ValueError: an unknown name, or a bad value.
    """
    for name in given:
        if name not in PARAMETERS:
            raise ValueError(f"{name} is not a parameter.{nearest(name, PARAMETERS)}")
    return {
        name: parameter.parse(given[name]) if name in given else parameter.default
        for name, parameter in PARAMETERS.items()
    }


def stream_limits(values: Mapping[str, Any]) -> StreamSettings:
    """Return the stream settings that the parsed parameters set."""
    chosen: dict[str, Any] = {}
    for name, parameter in PARAMETERS.items():
        if parameter.limit is not None:
            value = values[name]
            scaled = isinstance(value, float)
            chosen[parameter.limit] = value * parameter.unit if scaled else value
    return StreamSettings(**chosen)
