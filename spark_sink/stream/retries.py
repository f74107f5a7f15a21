"""Retries of requests to a server, and which errors allow one.

A request is retried for a time, or for a number of attempts. Then the query fails, or the retries
begin again after a delay. That corresponds to a restart of a Debezium connector, whose number
`errors.max.retries` limits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from spark_sink.console import say
from spark_sink.errors import StreamError
from spark_sink.options.stream_options import RetryPolicy

_MAX_DOUBLINGS = 30
# Codes after which the same request may succeed: elections, shutdowns, killed and lost cursors, a
# collection that was dropped or renamed meanwhile. Servers give most of them a label, but only in
# replies of change streams.
_TRANSIENT = frozenset(
    {6, 7, 26, 43, 63, 89, 91, 133, 134, 175, 189, 234, 237, 262, 9001, 10107, 11600, 11602, 13388,
     13435, 13436}
)  # fmt: skip
_Result = TypeVar("_Result")


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
        self._since: float | None = None
        self._attempts = self._restarts = 0

    def reset(self) -> bool:
        """Record progress: the next failure is the first one again.

        Return whether the last request failed.
        """
        failed = self._attempts + self._restarts > 0
        self._since, self._attempts, self._restarts = None, 0, 0
        return failed

    def run(self, call: Callable[[], _Result]) -> _Result:
        """Return the result of a call to the server, repeated after transient errors.

        Raises StreamError when the retries are exhausted, and other errors immediately.
        """
        while True:
            try:
                return call()
            except PyMongoError as error:
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
            problem = f"{server} cannot be reached or does not answer. Check that it runs {where}"
            if isinstance(error, StreamError | OperationFailure):
                problem = f"{server} answers, but not as it should. Look into its log {where}"
            raise StreamError(
                f"gave up after {policy}: {problem}, and restart the query", error
            ) from error
        self._restarts += 1
        self._since, self._attempts = None, 0
        kind, delay = type(error).__name__, policy.restart_delay
        say(f"mergerouter: {kind}; retry {self._restarts} begins in {delay:g} s")
        self._sleep(delay)


def is_transient(error: PyMongoError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, OperationFailure) and error.code in _TRANSIENT:
        return True
    return isinstance(error, ConnectionFailure) or error.has_error_label(
        "ResumableChangeStreamError"
    )
