"""The options of retries, which are Debezium's.

Consecutive failures end after a time, or after a number of attempts. Then the query fails, unless
it restarts: a restart corresponds to that of a connector, which Debezium counts with
`errors.max.retries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_sink.errors import OptionError
from spark_sink.options import values
from spark_sink.options.names import GetOption

_ATTEMPTS = "connect.max.attempts"
_INITIAL_BACKOFF = "connect.backoff.initial.delay.ms"
_MAX_BACKOFF = "connect.backoff.max.delay.ms"
_RESTARTS = "errors.max.retries"
_RESTART_DELAY = "retriable.restart.connector.wait.ms"
_SELECTION = "mongodb.server.selection.timeout.ms"
RETRY_OPTIONS = (_ATTEMPTS, _INITIAL_BACKOFF, _MAX_BACKOFF, _RESTARTS, _RESTART_DELAY, _SELECTION)
"""The names of the options, which are Debezium's."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long failing requests are retried; times are in seconds.

    Args:
        initial_backoff: before the first retry; it doubles up to max_backoff, with random jitter.
        attempts: the most consecutive failures; None: as many as fit in max_seconds.
        restarts: how often this begins anew after restart_delay; None is no limit.
        selection_timeout: for server selection; None: the default, which is shorter if connections
            are refused.
    """

    initial_backoff: float = 0.05
    max_backoff: float = 2.0
    attempts: int | None = None
    max_seconds: float = 60.0
    restarts: int | None = 0
    restart_delay: float = 10.0
    selection_timeout: float | None = None

    def __str__(self) -> str:
        """Return the time or the number of attempts after which the query fails, for messages."""
        bound = f"{self.max_seconds:.0f} s"
        if self.attempts is not None:
            bound = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return f"{bound}, {self.restarts + 1} times" if self.restarts else bound


DEFAULT_RETRY_POLICY = RetryPolicy()


def retry_options(given: Mapping[str, str], get: GetOption) -> RetryPolicy:
    """Return the options of this module among those given. Raises OptionError."""
    longest = get(_MAX_BACKOFF, values.milliseconds, None)
    first = get(_INITIAL_BACKOFF, values.milliseconds, None)
    if first is None:
        first = min(
            RetryPolicy.initial_backoff, RetryPolicy.max_backoff if longest is None else longest
        )
    if longest is None:
        longest = max(first, RetryPolicy.max_backoff)
    if first > longest:
        raise OptionError(f"option {_INITIAL_BACKOFF!r} must not be greater than {_MAX_BACKOFF!r}")
    if _RESTART_DELAY in given and _RESTARTS not in given:
        raise OptionError(f"option {_RESTART_DELAY!r} requires option {_RESTARTS!r}")
    restarts: int | None = RetryPolicy.restarts
    return RetryPolicy(
        initial_backoff=first,
        max_backoff=longest,
        attempts=get(_ATTEMPTS, values.positive, None),
        restarts=get(_RESTARTS, _restarts, restarts),
        restart_delay=get(_RESTART_DELAY, values.milliseconds, RetryPolicy.restart_delay),
        selection_timeout=get(_SELECTION, values.positive_milliseconds, None),
    )


def _restarts(text: str) -> int | None:
    """Return Debezium's errors.max.retries: -1 is no limit."""
    if text == "-1":
        return None
    if not text.isdecimal():
        raise ValueError(f"must be -1 for no limit, 0 or a positive whole number, not {text!r}")
    return int(text)
