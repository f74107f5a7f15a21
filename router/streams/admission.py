"""Admission control: limits on cursors, streams, memory and connections."""

from collections import Counter
from typing import Final

from router.memory import LEAST_BATCH, NEEDS, Memory
from router.stream_settings import StreamSettings
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_OVERLOAD_LABELS: Final = ("SystemOverloadedError", "RetryableError")
"""Labels of a refusal that left nothing behind. Drivers that implement client backpressure (see the
drivers' specifications) retry later with growing pauses; others treat it as an ordinary error."""


class Ticket:
    """The right to keep a cursor or stream open; ``end`` returns it and is idempotent."""

    __slots__ = ("_client", "_ended", "_kind")

    def __init__(self, kind: "_Kind", client: str | None) -> None:
        self._kind = kind
        self._client = client
        self._ended = False
        kind.begun(client)

    def end(self) -> None:
        """Return the right, so that another cursor or stream can be admitted."""
        if not self._ended:
            self._ended = True
            self._kind.ended(self._client)


class _Kind:
    """The number of open cursors, or of open streams, in total and by client."""

    __slots__ = ("by_client", "open")

    def __init__(self) -> None:
        self.open = 0
        self.by_client: Counter[str] = Counter()

    def begun(self, client: str | None) -> None:
        self.open += 1
        if client is not None:
            self.by_client[client] += 1

    def ended(self, client: str | None) -> None:
        self.open -= 1
        if client is not None:
            self.by_client[client] -= 1
            if not self.by_client[client]:
                del self.by_client[client]


class Admission:
    """Counts open cursors and streams and refuses those beyond the limits (docs/connections.md).

    A client reads a cursor; a stream is a set of cursors on the members, which clients of identical
    streams share. A stream is charged to the client for which it was opened, until it is closed.
    Clients are identified by their addresses; None is charged to no client.

    Args:
        limits: the limits of streams.
        memory: counts the cursors with document lookups.
    """

    def __init__(self, limits: StreamSettings, memory: Memory) -> None:
        self._limits = limits
        self._memory = memory
        self._cursors = _Kind()
        self._streams = _Kind()
        self.refused: Counter[str] = Counter()
        """Number of refusals by the parameter that caused them."""

    @property
    def cursors(self) -> int:
        """Cursors that are open or being opened."""
        return self._cursors.open

    @property
    def streams(self) -> int:
        """Streams that are open or being opened."""
        return self._streams.open

    def cursor(self, client: str | None) -> Ticket:
        """Admit one more cursor of ``client``. Raises CommandError (365)."""
        limits = self._limits
        self._check(self._cursors.open, limits.max_cursors, "maxCursors", "cursors are open")
        if client is not None:
            self._check(
                self._cursors.by_client[client],
                limits.max_cursors_per_client,
                "maxCursorsPerClient",
                f"cursors of {client} are open",
            )
        return Ticket(self._cursors, client)

    def stream(self, client: str | None, remotes: int) -> Ticket:
        """Admit one more stream for ``client``; each stream has cursors on ``remotes`` members.

        Raises CommandError (365).
        """
        limits, streams = self._limits, self._streams
        different = "different change streams are open"
        self._check(streams.open, limits.max_streams, "maxStreams", different)
        if client is not None:
            self._check(
                streams.by_client[client],
                limits.max_streams_per_client,
                "maxStreamsPerClient",
                f"different change streams were opened by {client}",
            )
        self._check(
            streams.open,
            limits.streams_by_connections,
            "ShardingTaskExecutorPoolMaxSize",
            f"{different}, each with a connection to every shard",
        )
        holders = (streams.open + 1) * remotes + self._memory.lookups
        if streams.open and self._too_many(holders):
            reason = (
                f"{different}, which leaves no memory to read another one from {remotes} members"
            )
            self._refuse(streams.open, "totalBufferBytes", reason)
        return Ticket(streams, client)

    def lookup(self, remotes: int) -> None:
        """Admit one more cursor with document lookups, which ``Memory.lookups`` counts.

        Each open stream has cursors on ``remotes`` members. Raises CommandError (365).
        """
        lookups = self._memory.lookups
        if lookups and self._too_many(self._streams.open * remotes + lookups + 1):
            reason = "cursors look documents up, which leaves no memory for another one"
            self._refuse(lookups, "totalBufferBytes", reason)

    def _too_many(self, holders: int) -> bool:
        """Return whether the smallest batches of so many remotes and lookups exceed the limit."""
        needed = NEEDS * min(LEAST_BATCH, self._limits.batch_target_bytes)
        return holders * needed > self._limits.total_buffer_bytes

    def _check(self, count: int, most: int, parameter: str, what: str) -> None:
        if count >= most:
            self._refuse(count, parameter, what)

    def _refuse(self, count: int, parameter: str, what: str) -> None:
        self.refused[parameter] += 1
        raise CommandError(
            ErrorCode.TemporarilyUnavailable,
            f"too many change streams: {count} {what}; close some, or raise {parameter}",
            labels=_OVERLOAD_LABELS,
        )
