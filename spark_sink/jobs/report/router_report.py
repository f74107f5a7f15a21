"""Reports of a running job to the router that it reads from, for the router's status page."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

import pymongo
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError

from spark_sink.console import say
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.report.progress import QueryProgress
from spark_sink.options.stream_options import parse_options
from spark_sink.stream.retries import is_transient
from spark_sink.stream.router_client import addresses_of, mongo_client

_COMMAND = "mergerouterReportJob"
# Seconds between two reports, and how long one may take: the job waits for it.
_INTERVAL = 10.0
_TIMEOUT = 1.0
# The seconds over which the rate of events is measured.
_SPAN = 60.0
# Seconds after which a job without a batch reports. Until then the page shows the error with which
# it ended before.
_FIRST_REPORT = 60.0
# Seconds without an answer after which the job prints a line.
_SILENCE = 15.0


class RouterReport:
    """Reports a job's progress. As a context manager it also reports the end of the job, or the
    exception that ends it.

    The job continues if a report fails. While the job runs, a line is printed when the router does
    not answer, and when it answers again. A server that refuses reports, as a mongos does, gets a
    ping instead.

    Args:
        folder: the job's folder, by which the page names it.
        options: the options of the job's source, with `uri`.
        clock: seconds, as of `time.monotonic`.
    """

    def __init__(
        self,
        folder: str,
        options: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parsed = parse_options(dict(options))
        scope = parsed.scope
        self._database = scope.database or "admin"
        self._target: str | int = scope.collections[0] if len(scope.collections) == 1 else 1
        self._client = mongo_client(parsed.uri, parsed.retry_policy.selection_timeout)
        self._report: dict[str, Any] = {"job": _without_password(folder)}
        self._clock = clock
        self._began = clock()
        self._next = self._began + _FIRST_REPORT
        self._rates: deque[tuple[float, int]] = deque()
        self._command = _COMMAND
        self._failed_at: float | None = None  # since when no report was answered
        self._is_silent = False  # a line says so

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and "error" not in self._report:
            self.failed(cause_of(error))
        elif error is None and "error" not in self._report:
            self._send(ended=True)
        self._client.close()

    def add(self, progress: QueryProgress) -> None:
        """Note a batch, if there is one, and what is reached: the next `turn` reports them."""
        if progress.through is not None:
            self._report |= {"through": Timestamp(progress.through, 0), "waits": progress.waits}
        if progress.batch is None:
            return
        if "batch" not in self._report:
            self._next = self._clock()
        self._report["batch"] = progress.batch
        self._rates.append((self._clock(), progress.written.events))

    def turn(self) -> None:
        """Report what is due; call it about every second."""
        if self._clock() < self._next:
            return
        error = self._send()
        if error is None:
            if self._is_silent:
                say("the router answers again")
            self._failed_at, self._is_silent = None, False
            return
        now = self._clock()
        self._failed_at = now if self._failed_at is None else self._failed_at
        if not self._is_silent and now - self._failed_at >= _SILENCE:
            self._is_silent = True
            say(
                f"{addresses_of(self._client)} has not answered for {now - self._failed_at:.0f} s "
                f"({type(error).__name__}): check that the router runs there. The job waits, and "
                "continues when it answers"
            )

    def failed(self, cause: str) -> None:
        """Report why the job fails."""
        self._report["error"] = cause
        self._send()

    def _send(self, *, ended: bool = False) -> PyMongoError | None:
        """Report; return the error of a router that does not answer."""
        self._next = self._clock() + _INTERVAL
        self._report |= {"rate": self._rate(), "ended": ended}
        given = (self._target, self._report) if self._command == _COMMAND else (1, {})
        try:
            with pymongo.timeout(_TIMEOUT):
                self._client[self._database].command(self._command, given[0], **given[1])
        except PyMongoError as error:
            if not isinstance(error, OperationFailure) or is_transient(error) or error.timeout:
                return error
            self._command = "ping"
        return None

    def _rate(self) -> float:
        """Return the events a second in the last minute."""
        now = self._clock()
        while self._rates and self._rates[0][0] < now - _SPAN:
            self._rates.popleft()
        seconds = min(_SPAN, max(1.0, now - self._began))
        return sum(events for _, events in self._rates) / seconds


def _without_password(address: str) -> str:
    """Return a folder's address without the user information that a URI may have."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"
