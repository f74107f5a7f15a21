"""The options of retries, which are Debezium's.

A request is retried for a time, or for a number of attempts. Then the query fails or restarts. A
restart corresponds to that of a connector, whose number Debezium limits with `errors.max.retries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_sink.errors import OptionError
from spark_sink.options import values
from spark_sink.options.names import fields_in, option

_INITIAL_BACKOFF = "connect.backoff.initial.delay.ms"
_MAX_BACKOFF = "connect.backoff.max.delay.ms"
_RESTARTS, _RESTART_DELAY = "errors.max.retries", "retriable.restart.connector.wait.ms"


@dataclass(frozen=True)
class RetryPolicy:
    """How long failing requests are retried; times are in seconds.

    Args:
        initial_backoff: before the first retry; it doubles up to max_backoff, with random jitter.
        attempts: the most consecutive failures; None: as many as fit in max_seconds.
        restarts: how often the query restarts, after restart_delay; None is no limit.
        selection_timeout: for server selection.
    """

    initial_backoff: float = option(_INITIAL_BACKOFF, values.milliseconds, 0.05)
    max_backoff: float = option(_MAX_BACKOFF, values.milliseconds, 2.0)
    attempts: int | None = option("connect.max.attempts", values.positive, None)
    max_seconds: float = 60.0
    restarts: int | None = option(_RESTARTS, values.unlimited_number, 0)
    restart_delay: float = option(_RESTART_DELAY, values.milliseconds, 10.0)
    selection_timeout: float = option(
        "mongodb.server.selection.timeout.ms", values.positive_milliseconds, 2.5
    )

    def __str__(self) -> str:
        """Return the time or the number of attempts after which the query fails, for messages."""
        bound = f"{self.max_seconds:.0f} s"
        if self.attempts is not None:
            bound = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return f"{bound}, {self.restarts + 1} times" if self.restarts else bound


DEFAULT_RETRY_POLICY = RetryPolicy()


def retry_options(given: Mapping[str, str]) -> RetryPolicy:
    """Return the options of retries among those given. Raises OptionError."""
    policy = RetryPolicy(**fields_in(RetryPolicy, given))
    if _RESTART_DELAY in given and _RESTARTS not in given:
        raise OptionError(f"option {_RESTART_DELAY!r} requires option {_RESTARTS!r}")
    first, longest = policy.initial_backoff, policy.max_backoff
    if first > longest and _INITIAL_BACKOFF in given and _MAX_BACKOFF in given:
        raise OptionError(f"option {_INITIAL_BACKOFF!r} must not be greater than {_MAX_BACKOFF!r}")
    if first > longest:  # one of them is a default, which follows the other
        pause = first if _INITIAL_BACKOFF in given else longest
        return replace(policy, initial_backoff=pause, max_backoff=pause)
    return policy
