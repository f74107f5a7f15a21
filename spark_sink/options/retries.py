"""Retries of requests to a server, their options, and which errors allow one.

A request is retried for a time, or for a number of attempts. Then the query fails or restarts. A
restart corresponds to that of a connector, whose number Debezium limits with `errors.max.retries`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pymongo.errors import ConnectionFailure, CursorNotFound, PyMongoError

from spark_sink.errors import StreamError, say
from spark_sink.options import values
from spark_sink.options.values import option

_MAX_DOUBLINGS = 30
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RetryPolicy:
    """How long failing requests are retried; times are in seconds.

    Args:
        initial_backoff: before the first retry; it doubles up to max_backoff, with random jitter.
        max_backoff: is at least `initial_backoff`.
        attempts: the most consecutive failures; None: as many as fit in max_seconds.
        restarts: how often the query restarts, after restart_delay; None is no limit.
        selection_timeout: for server selection.
    """

    initial_backoff: float = option("connect.backoff.initial.delay.ms", values.seconds, 0.05)
    max_backoff: float = option("connect.backoff.max.delay.ms", values.seconds, 2.0)
    attempts: int | None = option("connect.max.attempts", values.positive, None)
    max_seconds: float = 60.0
    restarts: int | None = option("errors.max.retries", values.unlimited_number, 0)
    restart_delay: float = option("retriable.restart.connector.wait.ms", values.seconds, 10.0)
    selection_timeout: float = option(
        "mongodb.server.selection.timeout.ms", values.positive_seconds, 2.5
    )

    def __str__(self) -> str:
        """Return the time or the number of attempts after which the query fails, for messages."""
        bound = f"{self.max_seconds:.0f} s"
        if self.attempts is not None:
            bound = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        return f"{bound}, {self.restarts + 1} times" if self.restarts else bound


DEFAULT_RETRY_POLICY = RetryPolicy()


class Retries:
    """The consecutive failures of one repeated request."""

    def __init__(
        self,
        retry_policy: RetryPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._policy = retry_policy
        self._clock = clock
        self._sleep = sleep
        self.reset()

    def reset(self) -> None:
        """Record progress: the next failure is the first one again."""
        self._since: float | None = None
        self._attempts = self._restarts = 0

    def run(
        self, call: Callable[[], _Result], failed: Callable[[PyMongoError], None] | None = None
    ) -> _Result:
        """Return the result of a call to the server, repeated after transient errors.

        `failed` is called after each error. Raises StreamError when the retries are exhausted, and
        other errors immediately.
        """
        while True:
            try:
                return call()
            except PyMongoError as error:
                if failed is not None:
                    failed(error)
                if not is_transient(error):
                    raise
                self.wait(error)

    def wait(
        self,
        error: Exception,
        server: str = "the server",
        where: str = "at the address in option 'uri'",
    ) -> None:
        """Sleep until a failed request may be repeated.

        Raises StreamError if it may not. Its message names the server and where to look.
        """
        policy, now = self._policy, self._clock()
        self._since = now if self._since is None else self._since
        self._attempts += 1
        are_over = now - self._since >= policy.max_seconds
        if policy.attempts is not None:
            are_over = self._attempts >= policy.attempts
        if not are_over:
            first = policy.initial_backoff
            longest = max(first, policy.max_backoff)
            pause = min(first * 2 ** min(self._attempts - 1, _MAX_DOUBLINGS), longest)
            self._sleep(pause * random.uniform(0.5, 1.0))
            return
        if policy.restarts is not None and self._restarts >= policy.restarts:
            raise StreamError(
                f"gave up after {policy}: {server} cannot be reached or does not answer. Check "
                f"that it runs {where}, and restart the query",
                error,
            ) from error
        self._restarts += 1
        self._since, self._attempts = None, 0
        kind, delay = type(error).__name__, policy.restart_delay
        say(f"mergerouter: {kind}; retry {self._restarts} begins in {delay:g} s")
        self._sleep(delay)


def is_transient(error: PyMongoError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, CursorNotFound | ConnectionFailure):
        return True
    return error.has_error_label("ResumableChangeStreamError")
