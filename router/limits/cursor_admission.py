"""Admission control: limits on the open cursors and streams, and on the memory for them."""

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, get_args

from bson.int64 import Int64

from router.limits.memory import LEAST_BATCH, NEEDS, Holding, Memory
from router.stream_settings import StreamSettings
from shard_client.errors import CommandError, ErrorCode

_OVERLOAD_LABELS: Final = ("SystemOverloadedError", "RetryableError")
"""Labels of a refusal that left nothing behind. Drivers that implement client backpressure (see the
drivers' specifications) retry later with growing pauses; others treat it as an ordinary error."""

_HELD_PER_BYTE: Final = 4
"""Bytes that an open cursor holds for each byte of its request: decoded, and as keys of streams."""

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


class Quota(NamedTuple):
    """A client's address and a user, each if known, to which cursors and streams are charged."""

    client: str | None = None
    user: str | None = None


NOBODY: Final = Quota()


class OpenCounts:
    """The number of open cursors, or of open streams: of all, of each client and of each user."""

    def __init__(self) -> None:
        self._counts: Counter[Quota] = Counter()

    def count(self, *, client: str | None = None, user: str | None = None) -> int:
        """Return the number of a client or a user; of all, if neither is given."""
        return self._counts[Quota(client, user)]

    def add(self, quota: Quota, number: int) -> None:
        """Add to the numbers to which ``quota`` is charged."""
        for charged in {NOBODY, Quota(client=quota.client), Quota(user=quota.user)}:
            self._counts[charged] += number
            if not self._counts[charged]:
                del self._counts[charged]

    @property
    def users(self) -> set[str]:
        """The users that have some."""
        return {quota.user for quota in self._counts if quota.user is not None}


class Ticket:
    """The right to keep a cursor or stream open; ``end`` returns it and is idempotent."""

    def __init__(self, opened: OpenCounts, quota: Quota, held: Holding | None = None) -> None:
        self._open = opened
        self._quota = quota
        self._held = held
        self._ended = False
        opened.add(quota, 1)

    def end(self) -> None:
        """Return the right, so that another cursor or stream can be admitted."""
        if not self._ended:
            self._ended = True
            self._open.add(self._quota, -1)
            if self._held is not None:
                self._held.size = 0


class Admission:
    """Counts open cursors and streams and refuses those beyond the limits (docs/connections.md).

    A client reads a cursor; a stream is a set of cursors on the members, which clients of identical
    streams share. A stream is charged to the client for which it was opened, until it is closed.
    Clients are identified by their addresses; None is charged to no client. ``memory`` counts the
    cursors with document lookups, and has the limits of bytes.
    """

    def __init__(self, settings: StreamSettings, memory: Memory) -> None:
        self._settings = settings
        self._memory = memory
        self._cursors = OpenCounts()
        self._streams = OpenCounts()
        # With zeros, since a metric that begins with its first count hides it from increase().
        self.refused = Counter[str](dict.fromkeys(get_args(Limiting), 0))
        """Number of refusals by the parameter that caused them."""

    @property
    def streams(self) -> int:
        """Streams that are open or being opened."""
        return self._streams.count()

    def admit_cursor(self, quota: Quota, request_bytes: int = 0) -> Ticket:
        """Admit one more cursor of ``quota``, whose request is kept. Raises CommandError (365)."""
        settings, count, (client, user) = self._settings, self._cursors.count, quota
        self._check(count(), settings.max_cursors, "maxCursors", "cursors are open")
        if client is not None:
            most, what = settings.max_cursors_per_client, f"cursors of {client} are open"
            self._check(count(client=client), most, "maxCursorsPerClient", what)
        if user is not None:
            most, what = settings.max_cursors_per_user, f"cursors of the user {user} are open"
            self._check(count(user=user), most, "maxCursorsPerUser", what)
        size = _HELD_PER_BYTE * request_bytes
        if size < LEAST_BATCH:
            return Ticket(self._cursors, quota)
        for parameter, charged, memory in self._budgets(quota):
            if memory.held + size > memory.limit:
                reason = f"cursors are open, which leaves no memory for a request of {size} bytes"
                self._refuse(count(user=charged), parameter, reason)
        held = Holding(self._memory.of(user))
        held.size = size
        return Ticket(self._cursors, quota, held)

    def admit_stream(self, quota: Quota, remotes: int) -> Ticket:
        """Admit one more stream for ``quota``; each stream has cursors on ``remotes`` members.

        Raises CommandError (365).
        """
        for bound in self._stream_bounds(quota):
            self._check(*bound)
        for parameter, user, memory in self._budgets(quota):
            streams = self._streams.count(user=user)
            if streams and self._too_many((streams + 1) * remotes + memory.lookups, memory):
                by = "are open" if user is None else f"were opened by the user {user}"
                reason = (
                    f"different change streams {by}, which leaves no memory to read another one "
                    f"from {remotes} members"
                )
                self._refuse(streams, parameter, reason)
        return Ticket(self._streams, quota)

    def streams_left(self, quota: Quota) -> int:
        """Return how many more streams the limits of their number allow ``quota``."""
        return min(most - count for count, most, _, _ in self._stream_bounds(quota))

    def admit_lookup(self, quota: Quota, remotes: int) -> None:
        """Admit one more cursor with document lookups of ``quota``; ``Memory`` counts it.

        Each open stream has cursors on ``remotes`` members. Raises CommandError (365).
        """
        for parameter, user, memory in self._budgets(quota):
            holders = self._streams.count(user=user) * remotes + memory.lookups + 1
            if memory.lookups and self._too_many(holders, memory):
                whose = "" if user is None else f" of the user {user}"
                reason = f"cursors{whose} look documents up, which leaves no memory for another one"
                self._refuse(memory.lookups, parameter, reason)

    def users(self, most: int) -> list[dict[str, Any]]:
        """Return what users have open and hold: up to ``most`` users, those with most bytes first.

        A stream and its bytes are those of the user that has opened it.
        """
        cursors, streams = self._cursors, self._streams
        shares: Iterator[dict[str, Any]] = (
            {
                "user": user,
                "cursors": cursors.count(user=user),
                "streams": streams.count(user=user),
                "heldBytes": Int64(self._memory.of(user).held),
            }
            for user in cursors.users | streams.users
        )
        return nlargest(most, shares, key=itemgetter("heldBytes"))

    def _stream_bounds(self, quota: Quota) -> Iterator[tuple[int, int, Limiting, str]]:
        """Yield each limit as the number of streams, their maximum, its parameter, and a text."""
        settings, count, (client, user) = self._settings, self._streams.count, quota
        different = "different change streams"
        yield count(), settings.max_streams, "maxStreams", f"{different} are open"
        if client is not None:
            by = f"{different} were opened by {client}"
            yield count(client=client), settings.max_streams_per_client, "maxStreamsPerClient", by
        if user is not None:
            by = f"{different} were opened by the user {user}"
            yield count(user=user), settings.max_streams_per_user, "maxStreamsPerUser", by
        what = f"{different} are open, each with a connection to every shard"
        yield count(), settings.streams_by_connections, "ShardingTaskExecutorPoolMaxSize", what

    def _budgets(self, quota: Quota) -> Iterator[tuple[Limiting, str | None, Memory]]:
        """Yield the budgets of memory that apply to ``quota``, each with its parameter and user."""
        yield "totalBufferBytes", None, self._memory
        if quota.user is not None:
            yield "userBufferBytes", quota.user, self._memory.of(quota.user)

    def _too_many(self, holders: int, memory: Memory) -> bool:
        """Return whether the smallest batches of so many remotes and lookups exceed the limit."""
        needed = NEEDS * min(LEAST_BATCH, self._settings.batch_target_bytes)
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
