"""Admission control: limits on cursors, streams, memory and connections."""

from collections import Counter
from typing import Final, Literal, NamedTuple

from router.memory import LEAST_BATCH, NEEDS, Memory
from router.stream_settings import StreamSettings
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_OVERLOAD_LABELS: Final = ("SystemOverloadedError", "RetryableError")
"""Labels of a refusal that left nothing behind. Drivers that implement client backpressure (see the
drivers' specifications) retry later with growing pauses; others treat it as an ordinary error."""


Limiting = Literal[
    "maxCursors",
    "maxCursorsPerClient",
    "maxCursorsPerUser",
    "maxStreams",
    "maxStreamsPerClient",
    "maxStreamsPerUser",
    "ShardingTaskExecutorPoolMaxSize",
    "totalBufferBytes",
]
"""The parameters that cause refusals."""


class Payer(NamedTuple):
    """A client's address and a user, each if known, to which cursors and streams are charged."""

    client: str | None = None
    user: str | None = None


NOBODY: Final = Payer()


class Ticket:
    """The right to keep a cursor or stream open; ``end`` returns it and is idempotent."""

    __slots__ = ("_ended", "_kind", "_payer")

    def __init__(self, kind: "_Kind", payer: Payer) -> None:
        self._kind = kind
        self._payer = payer
        self._ended = False
        kind.begun(payer)

    def end(self) -> None:
        """Return the right, so that another cursor or stream can be admitted."""
        if not self._ended:
            self._ended = True
            self._kind.ended(self._payer)


class _Kind:
    """The number of open cursors, or of open streams, in total, by client and by user."""

    __slots__ = ("by_client", "by_user", "open")

    def __init__(self) -> None:
        self.open = 0
        self.by_client: Counter[str] = Counter()
        self.by_user: Counter[str] = Counter()

    def begun(self, payer: Payer) -> None:
        self.open += 1
        for counter, name in ((self.by_client, payer.client), (self.by_user, payer.user)):
            if name is not None:
                counter[name] += 1

    def ended(self, payer: Payer) -> None:
        self.open -= 1
        for counter, name in ((self.by_client, payer.client), (self.by_user, payer.user)):
            if name is not None:
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]


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

    def cursor(self, payer: Payer) -> Ticket:
        """Admit one more cursor of ``payer``. Raises CommandError (365)."""
        limits = self._limits
        self._check(self._cursors.open, limits.max_cursors, "maxCursors", "cursors are open")
        if payer.client is not None:
            self._check(
                self._cursors.by_client[payer.client],
                limits.max_cursors_per_client,
                "maxCursorsPerClient",
                f"cursors of {payer.client} are open",
            )
        if payer.user is not None:
            self._check(
                self._cursors.by_user[payer.user],
                limits.max_cursors_per_user,
                "maxCursorsPerUser",
                f"cursors of the user {payer.user} are open",
            )
        return Ticket(self._cursors, payer)

    def stream(self, payer: Payer, remotes: int) -> Ticket:
        """Admit one more stream for ``payer``; each stream has cursors on ``remotes`` members.

        Raises CommandError (365).
        """
        limits, streams = self._limits, self._streams
        different = "different change streams are open"
        self._check(streams.open, limits.max_streams, "maxStreams", different)
        if payer.client is not None:
            self._check(
                streams.by_client[payer.client],
                limits.max_streams_per_client,
                "maxStreamsPerClient",
                f"different change streams were opened by {payer.client}",
            )
        if payer.user is not None:
            self._check(
                streams.by_user[payer.user],
                limits.max_streams_per_user,
                "maxStreamsPerUser",
                f"different change streams were opened by the user {payer.user}",
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
        return Ticket(streams, payer)

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

    def _check(self, count: int, most: int, parameter: Limiting, what: str) -> None:
        if count >= most:
            self._refuse(count, parameter, what)

    def _refuse(self, count: int, parameter: Limiting, what: str) -> None:
        self.refused[parameter] += 1
        raise CommandError(
            ErrorCode.TemporarilyUnavailable,
            f"too many change streams: {count} {what}; close some, or raise {parameter}",
            labels=_OVERLOAD_LABELS,
        )
