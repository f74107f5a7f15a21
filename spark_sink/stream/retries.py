"""Retries of requests to the server, and which errors allow one."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from pymongo.errors import ConnectionFailure, CursorNotFound, PyMongoError

from spark_sink.errors import StreamError
from spark_sink.options.retry_options import RetryPolicy

RESUMABLE_LABEL = "ResumableChangeStreamError"

_MAX_DOUBLINGS = 30


class Retries:
    """The consecutive failures of one repeated request."""

    def __init__(
        self,
        retry_policy: RetryPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._retry_policy = retry_policy
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._attempts = 0
        self._restarts = 0

    def reset(self) -> None:
        """Record progress: the next failure is the first one again."""
        self._since = None
        self._attempts = self._restarts = 0

    def wait_for_retry(self, error: Exception) -> bool:
        """Return whether to retry after a failure, after the backoff."""
        retry_policy = self._retry_policy
        now = self._clock()
        if self._since is None:
            self._since = now
        self._attempts += 1
        if not self._attempts_are_over(now):
            pause = retry_policy.initial_backoff * 2 ** min(self._attempts - 1, _MAX_DOUBLINGS)
            self._sleep(min(pause, retry_policy.max_backoff) * random.uniform(0.5, 1.0))
            return True
        if retry_policy.restarts is not None and self._restarts >= retry_policy.restarts:
            return False
        self._restarts += 1
        self._since, self._attempts = None, 0
        print(  # noqa: T201
            f"mergerouter: {type(error).__name__}; retry {self._restarts} begins in "
            f"{retry_policy.restart_delay:g} s",
            file=sys.stderr,
        )
        self._sleep(retry_policy.restart_delay)
        return True

    def _attempts_are_over(self, now: float) -> bool:
        if self._retry_policy.attempts is not None:
            return self._attempts >= self._retry_policy.attempts
        assert self._since is not None
        return now - self._since >= self._retry_policy.max_seconds


def is_transient(error: PyMongoError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, CursorNotFound | ConnectionFailure):
        return True
    return error.has_error_label(RESUMABLE_LABEL)


def retries_exhausted(retry_policy: RetryPolicy, error: Exception) -> StreamError:
    """Return the error of a query whose retries all failed."""
    return StreamError(
        f"gave up after {retry_policy}: the server cannot be reached or does not answer. Check "
        "that it runs at the address in option 'uri', and restart the query",
        error,
    )
