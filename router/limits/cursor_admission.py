"""Admission control: limits on the open cursors and streams, and on the memory for them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from heapq import nlargest
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, get_args

from bson.int64 import Int64

from router.limits.memory import LEAST_BATCH, NEEDS, Memory
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
"""What counts all cursors, or all streams."""


Admitted = ExitStack
"""An open cursor or stream; ``close`` lets another one be admitted, and is idempotent."""


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
        self._cursors: Counter[Quota] = Counter()
        self._streams: Counter[Quota] = Counter()
        # With zeros, since a metric that begins with its first count hides it from increase().
        self.refused = Counter[str](dict.fromkeys(get_args(Limiting), 0))
        """Number of refusals by the parameter that caused them."""

    @property
    def streams(self) -> int:
        """Streams that are open or being opened."""
        return self._streams[NOBODY]

    def admit_cursor(self, quota: Quota, request_bytes: int = 0) -> Admitted:
        """Admit one more cursor of ``quota``, whose request is kept. Raises CommandError (365)."""
        settings, open_, (client, user) = self._settings, self._cursors, quota
        self._check(open_[NOBODY], settings.max_cursors, "maxCursors", "cursors are open")
        if client is not None:
            most, what = settings.max_cursors_per_client, f"cursors of {client} are open"
            self._check(open_[Quota(client=client)], most, "maxCursorsPerClient", what)
        if user is not None:
            most, what = settings.max_cursors_per_user, f"cursors of the user {user} are open"
            self._check(open_[Quota(user=user)], most, "maxCursorsPerUser", what)
        size = _HELD_PER_BYTE * request_bytes
        if size < LEAST_BATCH:
            return _counted(self._cursors, quota)
        for parameter, charged, memory in self._budgets(quota):
            if memory.held + size > memory.limit:
                reason = f"cursors are open, which leaves no memory for a request of {size} bytes"
                self._refuse(open_[Quota(user=charged)], parameter, reason)
        admitted, memory = _counted(self._cursors, quota), self._memory.of(user)
        memory.add(held=size)
        admitted.callback(memory.add, held=-size)
        return admitted

    def admit_stream(self, quota: Quota, remotes: int) -> Admitted:
        """Admit one more stream for ``quota``; each stream has cursors on ``remotes`` members.

        Raises CommandError (365).
        """
        for bound in self._stream_bounds(quota):
            self._check(*bound)
        for parameter, user, memory in self._budgets(quota):
            streams = self._streams[Quota(user=user)]
            if streams and self._too_many((streams + 1) * remotes + memory.lookups, memory):
                by = "are open" if user is None else f"were opened by the user {user}"
                reason = (
                    f"different change streams {by}, which leaves no memory to read another one "
                    f"from {remotes} members"
                )
                self._refuse(streams, parameter, reason)
        return _counted(self._streams, quota)

    def streams_left(self, quota: Quota) -> int:
        """Return how many more streams the limits of their number allow ``quota``."""
        return min(most - count for count, most, _, _ in self._stream_bounds(quota))

    def admit_lookup(self, quota: Quota, remotes: int) -> None:
        """Admit one more cursor with document lookups of ``quota``; ``Memory`` counts it.

        Each open stream has cursors on ``remotes`` members. Raises CommandError (365).
        """
        for parameter, user, memory in self._budgets(quota):
            holders = self._streams[Quota(user=user)] * remotes + memory.lookups + 1
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
                "cursors": cursors[Quota(user=user)],
                "streams": streams[Quota(user=user)],
                "heldBytes": Int64(self._memory.of(user).held),
            }
            for user in {charged.user for charged in (*cursors, *streams)} - {None}
        )
        return nlargest(most, shares, key=itemgetter("heldBytes"))

    def _stream_bounds(self, quota: Quota) -> Iterator[tuple[int, int, Limiting, str]]:
        """Yield each limit as the number of streams, their maximum, its parameter, and a text."""
        settings, open_, (client, user) = self._settings, self._streams, quota
        different = "different change streams"
        yield open_[NOBODY], settings.max_streams, "maxStreams", f"{different} are open"
        if client is not None:
            by = f"{different} were opened by {client}"
            most = settings.max_streams_per_client
            yield open_[Quota(client=client)], most, "maxStreamsPerClient", by
        if user is not None:
            by = f"{different} were opened by the user {user}"
            most = settings.max_streams_per_user
            yield open_[Quota(user=user)], most, "maxStreamsPerUser", by
        what = f"{different} are open, each with a connection to every shard"
        most = settings.streams_by_connections
        yield open_[NOBODY], most, "ShardingTaskExecutorPoolMaxSize", what

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


def _counted(counts: Counter[Quota], quota: Quota) -> Admitted:
    """Count one more for all, for a client and for a user, until the result is closed."""
    charged = {NOBODY, Quota(client=quota.client), Quota(user=quota.user)}
    counts.update(charged)
    admitted = Admitted()
    admitted.callback(_uncount, counts, charged)
    return admitted


def _uncount(counts: Counter[Quota], charged: set[Quota]) -> None:
    counts.subtract(charged)
    for each in charged:
        if not counts[each]:
            del counts[each]
