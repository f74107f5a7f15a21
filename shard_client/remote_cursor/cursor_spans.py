"""The spans of one remote cursor: its openings, and its outages."""

from collections.abc import Iterator
from contextlib import contextmanager

from shard_client import spans
from shard_client.errors import CommandError


class CursorSpans:
    """Records the openings of a remote cursor, and each outage from the first failure on.

    The first opening, and failures before it succeeds, are part of the span in which the cursor is
    created. Later outages have no parent; openings meanwhile are part of them.

    Args:
        remote: the name of the replica set.
    """

    def __init__(self, remote: str) -> None:
        self._attributes = {"db.system.name": "mongodb", "mergerouter.replica_set": remote}
        self._parent: spans.Span | None = spans.current()
        self._outage: spans.Span | None = None
        self._error: CommandError | None = None

    @contextmanager
    def opening(self) -> Iterator[spans.Span]:
        """Record the block as an opening."""
        within = self._outage or self._parent
        with spans.recorded("open remote cursor", self._attributes, within) as span:
            yield span
        self._parent = None

    def connected(self, span: spans.Span, address: tuple[str, int]) -> None:
        """Note the member that a cursor is opened on."""
        host, port = address
        span.set_attributes({"server.address": host, "server.port": port})

    def failed(self, error: CommandError) -> None:
        """Record a failure, which begins an outage or is part of one."""
        self._error = error
        if self._outage is None:
            attributes = {**self._attributes, "mergerouter.cause": error.code_name}
            self._outage = spans.begin("reopen remote cursor", attributes, self._parent)

    def recovered(self) -> None:
        """End the outage: the cursor reads again."""
        self._end(None)

    def ended(self) -> None:
        """End the outage, if there is one, with its last failure: the cursor stays closed."""
        self._end(self._error)

    def _end(self, error: CommandError | None) -> None:
        if self._outage is not None:
            spans.end(self._outage, error)
            self._outage = None
