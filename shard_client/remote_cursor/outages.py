"""The outages of one remote cursor: their times, the pauses between attempts, and their spans.

They are recorded here. ``RemoteCursor`` decides whether a cursor is opened again.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from shard_client import spans
from shard_client.backoff import Backoff
from shard_client.errors import CommandError

log = structlog.get_logger()


class Outages:
    """Records the openings of a remote cursor, and each outage from its first failure on.

    An outage ends when a getMore is answered. It is logged, and recorded as a span, once. The first
    opening, and failures before it succeeds, are part of the span in which the cursor is created.
    Later outages have no parent; openings meanwhile are part of them. Create it in a running loop.

    Args:
        remote: the name of the replica set.
        backoff: the pauses between two attempts; it begins anew with each outage.
    """

    def __init__(self, remote: str, backoff: Backoff) -> None:
        self._remote = remote
        self._backoff = backoff
        self._loop = asyncio.get_running_loop()
        self._attributes = {"db.system.name": "mongodb", "mergerouter.replica_set": remote}
        self._parent: spans.Span | None = spans.current()
        self._span: spans.Span | None = None
        self._since: float | None = None
        self._failures = 0
        self.last_error: CommandError | None = None
        """The last failure, whether or not the cursor has recovered from it."""
        self.reopenings = 0
        """The number of outages after which the cursor was read again."""

    @property
    def lasted(self) -> float | None:
        """Seconds since the first failure of the current outage; None if there is none."""
        return None if self._since is None else self._loop.time() - self._since

    @contextmanager
    def opening(self) -> Iterator[spans.Span]:
        """Record the block as an opening."""
        within = self._span or self._parent
        with spans.recorded("open remote cursor", self._attributes, within) as span:
            yield span
        self._parent = None

    def record_end(self, error: CommandError) -> None:
        """Record a failure that ends the cursor, which is no outage."""
        self.last_error = error

    def record_failure(self, error: CommandError, since: float | None = None) -> float:
        """Record a failure; return the seconds for which the outage has lasted.

        One that begins has lasted since ``since`` on the loop's clock, by default now.
        """
        self.last_error = error
        if self._since is None:
            self._since = self._loop.time() if since is None else since
            attributes = {**self._attributes, "mergerouter.cause": error.code_name}
            self._span = spans.begin("reopen remote cursor", attributes, self._parent)
        lasted = self._loop.time() - self._since
        # A long outage is logged as a warning once, and counted.
        report = log.debug if self._failures else log.warning
        report("remote cursor failed", remote=self._remote, error=str(error), lasted=lasted)
        self._failures += 1
        return lasted

    def next_pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        return self._backoff.next_pause()

    def record_pause(self, seconds: float) -> None:
        """Exclude a pause from the outage's time: a paused cursor cannot recover."""
        if self._since is not None:
            self._since += seconds

    def end(self) -> bool:
        """End the outage, if there is one, as the cursor reads again; return whether it did."""
        if self._since is None:
            return False
        lasted, failures = self._loop.time() - self._since, self._failures
        log.info("remote cursor resumed", remote=self._remote, lasted=lasted, failures=failures)
        self._end_span(None)
        self.reopenings += 1
        self._since, self._failures = None, 0
        self._backoff.reset()
        return True

    def close(self) -> None:
        """End the span of the outage, if there is one, with its last failure."""
        self._end_span(self.last_error)

    def _end_span(self, error: CommandError | None) -> None:
        if self._span is not None:
            spans.end(self._span, error)
            self._span = None
