"""Reports of a running job to the router that it reads from, for the router's status page."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import pymongo
from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.jobs.progress import BatchProgress
from spark_sink.jobs.query_run import cause_of
from spark_sink.options.stream_options import parse_options
from spark_sink.stream.retries import is_transient
from spark_sink.stream.router_client import RouterClient

_COMMAND = "mergerouterReportJob"
# Seconds between two reports, and how long one may take: the job waits for it.
_INTERVAL = 10.0
_TIMEOUT = 1.0
# Seconds in which the events count that a rate is made of.
_SPAN = 60.0
# Seconds after which a job without a batch reports, so that until then the page shows the error
# with which it ended before.
_FIRST_REPORT = 60.0


class RouterReport:
    """Reports a job's progress. Use it as a context manager: its end reports the end of the job,
    or the exception that ends it.

    The job continues if a report fails. After a server has refused one, as a mongos does, no more
    reports are sent.

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
        self._client: RouterClient | None = RouterClient(parsed)
        self._job = _without_password(folder)
        self._clock = clock
        self._began = clock()
        self._next = self._began + _FIRST_REPORT
        self._rates: deque[tuple[float, int]] = deque()
        self._last: BatchProgress | None = None
        self._error: str | None = None
        self._idle = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self.failed(cause_of(error))
        elif error is None and self._error is None:
            self._send(ended=True)
        self._close()

    def add(self, batch: BatchProgress) -> None:
        """Take in a batch, which the next `turn` reports."""
        if self._last is None:
            self._next = self._clock()
        self._last = batch
        self._rates.append((self._clock(), batch.events))

    def turn(self, query: StreamingQuery) -> None:
        """Report what is due; call it about every second."""
        if self._clock() >= self._next:
            # Spark has looked for events, and has found none after the last batch.
            self._idle = not query.status["isDataAvailable"]
            self._send()

    def failed(self, cause: str) -> None:
        """Report why the job fails."""
        self._error = cause
        self._send()

    def _send(self, *, ended: bool = False) -> None:
        if self._client is None:
            return
        self._next = self._clock() + _INTERVAL
        try:
            with pymongo.timeout(_TIMEOUT):
                database = self._client.mongo[self._database]
                database.command(_COMMAND, self._target, **self._report(), ended=ended)
        except PyMongoError as error:
            if isinstance(error, OperationFailure) and not (is_transient(error) or error.timeout):
                self._close()

    def _report(self) -> dict[str, Any]:
        report: dict[str, Any] = {"job": self._job, "eventsPerSecond": self._rate()}
        if self._last is not None:
            report |= {"batch": self._last.number, "idle": self._idle}
            if self._last.through is not None:
                report["through"] = Timestamp(self._last.through, 0)
        if self._error is not None:
            report["error"] = self._error
        return report

    def _rate(self) -> float:
        """Return the events a second in the last minute."""
        now = self._clock()
        while self._rates and self._rates[0][0] < now - _SPAN:
            self._rates.popleft()
        seconds = min(_SPAN, max(1.0, now - self._began))
        return sum(events for _, events in self._rates) / seconds

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _without_password(address: str) -> str:
    """Return a folder's address without the user information that a URI may have."""
    scheme, found, rest = address.partition("://")
    if not found:
        return address
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"
