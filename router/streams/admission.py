"""Admission control: limits on cursors, streams, memory and connections."""

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from operator import attrgetter
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
    "userBufferBytes",
]
"""The parameters that cause refusals."""


class Payer(NamedTuple):
    """A client's address and a user, each if known, to which cursors and streams are charged."""

    client: str | None = None
    user: str | None = None


NOBODY: Final = Payer()


class UserShare(NamedTuple):
    """The open cursors and streams of a user, and the bytes of events that they hold."""

    user: str
    cursors: int
    streams: int
    held_bytes: int


class _Budget(NamedTuple):
    """A budget of memory: its parameter, its user if it is one user's, and its open streams."""

    parameter: Limiting
    user: str | None
    memory: Memory
    streams: int


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
        memory: counts the cursors with document lookups, and has the limits of bytes.
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
        for budget in self._budgets(payer):
            holders = (budget.streams + 1) * remotes + budget.memory.lookups
            if budget.streams and self._too_many(holders, budget.memory):
                by = "are open" if budget.user is None else f"were opened by the user {budget.user}"
                reason = (
                    f"different change streams {by}, which leaves no memory to read another one "
                    f"from {remotes} members"
                )
                self._refuse(budget.streams, budget.parameter, reason)
        return Ticket(streams, payer)

    def room(self, payer: Payer) -> int:
        """Return how many more streams the limits of their number allow ``payer``."""
        limits, streams = self._limits, self._streams
        rooms = [limits.max_streams - streams.open, limits.streams_by_connections - streams.open]
        if payer.client is not None:
            rooms.append(limits.max_streams_per_client - streams.by_client[payer.client])
        if payer.user is not None:
            rooms.append(limits.max_streams_per_user - streams.by_user[payer.user])
        return min(rooms)

    def lookup(self, payer: Payer, remotes: int) -> None:
        """Admit one more cursor with document lookups of ``payer``; ``Memory`` counts it.

        Each open stream has cursors on ``remotes`` members. Raises CommandError (365).
        """
        for budget in self._budgets(payer):
            lookups = budget.memory.lookups
            if lookups and self._too_many(budget.streams * remotes + lookups + 1, budget.memory):
                of = "" if budget.user is None else f" of the user {budget.user}"
                reason = f"cursors{of} look documents up, which leaves no memory for another one"
                self._refuse(lookups, budget.parameter, reason)

    def users(self, most: int) -> list[UserShare]:
        """Return what users have open and hold: up to ``most`` users, those with most bytes first.

        A stream and its bytes are those of the user that has opened it.
        """
        names = self._cursors.by_user.keys() | self._streams.by_user.keys()
        shares = (
            UserShare(
                name,
                self._cursors.by_user[name],
                self._streams.by_user[name],
                self._memory.of(name).held,
            )
            for name in names
        )
        return nlargest(most, shares, key=attrgetter("held_bytes"))

    def _budgets(self, payer: Payer) -> Iterator[_Budget]:
        """Yield the budgets of memory that apply to ``payer``: the process's and its user's."""
        yield _Budget("totalBufferBytes", None, self._memory, self._streams.open)
        if payer.user is not None:
            streams, memory = self._streams.by_user[payer.user], self._memory.of(payer.user)
            yield _Budget("userBufferBytes", payer.user, memory, streams)

    def _too_many(self, holders: int, memory: Memory) -> bool:
        """Return whether the smallest batches of so many remotes and lookups exceed the limit."""
        needed = NEEDS * min(LEAST_BATCH, self._limits.batch_target_bytes)
        return holders * needed > memory.limit

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
