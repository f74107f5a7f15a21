"""One remote of a merge: what it reads, its buffered events and its watermark."""

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple, NoReturn

from bson.timestamp import Timestamp

from router.memory import weight
from shard_client.bson.resume_token import TIME_DIGITS
from shard_client.remote_cursor.cursor_reply import Event, Watermark


@dataclass(frozen=True, slots=True)
class OpenRemote:
    """Open a cursor on ``target`` (a shard's id, or "config") from ``start_at``, inclusive.

    ``topology`` marks the cursor on ``config.shards``; it is opened with ``topology_command``.
    """

    remote: int
    target: str
    host: str
    start_at: Timestamp
    topology: bool = False


@dataclass(frozen=True, slots=True)
class ReopenRemote:
    """Reopen the remote with ``startAfter`` set to its invalidate's token (raw BSON)."""

    remote: int
    start_after: bytes


@dataclass(frozen=True, slots=True)
class CloseRemote:
    """Kill the remote's cursor, which is no longer needed."""

    remote: int


Action = OpenRemote | ReopenRemote | CloseRemote


class Laggard(NamedTuple):
    """A remote that holds others back until its watermark has passed the cluster time ``latest``.

    That is the time of the last event that is buffered now, or of its shard's removal.
    """

    remote: int
    latest: Timestamp


KEY: Final = itemgetter(0)
BSON: Final = itemgetter(1)
"""An event's sort key and its bytes."""


class MergeOrderError(Exception):
    """A remote broke its watermark: a batch out of order, or a watermark that went backwards."""

    def __init__(self, remote: int, message: str) -> None:
        super().__init__(f"remote {remote}: {message}")
        self.remote = remote


class _Run:
    """The rest of one or more batches of a remote; ``events`` before ``start`` are consumed."""

    __slots__ = ("events", "last", "size", "start")

    def __init__(self, events: list[Event], size: int) -> None:
        self.events = events
        self.start = 0
        self.size = size
        self.last = events[-1][0]


class RemoteQueue:
    """What a merge holds of one remote, which the merger and the membership change.

    ``watermark`` is the sort key of its watermark, None while it is silent. One that is given is
    known beforehand: nothing below it can come, but the remote has not sent it. ``eligible`` is
    whether the watermark may become the high water mark. The remote's change stream has ended at
    its watermark once it is ``invalidated``; its shard is gone once the watermark has reached the
    sort key ``removed_at``. ``skips_at`` tells which invalidate is skipped: None for none, so that
    every invalidate ends the remote; b"" until the first event; then that at the first event's
    cluster time, the beginning of its sort key.
    """

    __slots__ = (
        "_skipped", "_token", "buffered", "eligible", "invalidated", "opening", "removed_at",
        "runs", "skips_at", "watermark",
    )  # fmt: skip

    def __init__(
        self, opening: OpenRemote, watermark: bytes | None = None, skips_at: bytes | None = None
    ) -> None:
        self.opening = opening
        self.runs: deque[_Run] = deque()
        self.buffered = 0
        """Bytes of memory that its unreleased events take."""
        self.watermark = watermark
        self.eligible = watermark is None and not opening.topology
        self.invalidated = False
        self.removed_at: bytes | None = None
        self.skips_at = skips_at
        self._token = b""
        self._skipped = b""

    @property
    def target(self) -> str:
        """The shard's id, or "config"."""
        return self.opening.target

    @property
    def has_replied(self) -> bool:
        """Whether the first reply has arrived."""
        return bool(self._token)

    @property
    def mark(self) -> Watermark | None:
        """The watermark, if it may become the high water mark."""
        if self.watermark is None or not self.eligible:
            return None
        return Watermark(self.watermark, self._token)

    # Its life.

    def began(self, key: bytes) -> None:
        """Record the sort key of a reply's first event, before ``record_invalidate``."""
        if self.skips_at == b"":
            # Only the cause of an invalidate has its cluster time.
            self.skips_at = key[:TIME_DIGITS]

    def record_invalidate(self, key: bytes) -> bool:
        """Record that an invalidate has ended its change stream; return whether to skip it."""
        self.began(key)
        if self.skips_at is not None and key.startswith(self.skips_at):
            # A client cannot resume after an invalidate that it has not received.
            self._skipped = key
            return True
        self.invalidated = True
        return False

    # Its events.

    def add_batch(self, events: list[Event], reached: Watermark, size: int, coalesced: int) -> None:
        """Add one batch: ``events`` of ``size`` bytes in order, then the watermark ``reached``.

        Takes ownership of the list. Runs grow up to ``coalesced`` bytes. Raises MergeOrderError,
        and adds nothing, if the batch is out of order, goes below the earlier watermark or above
        the new one.
        """
        key, watermark = reached.key, self.watermark
        if watermark is not None and key < watermark:
            self._refuse(f"its watermark went back from {_time(watermark)} to {_time(key)}")
        if events:
            if watermark is not None and events[0][0] < watermark:
                early = _time(events[0][0])
                self._refuse(f"an event at {early} came after the watermark {_time(watermark)}")
            if events[-1][0] > key:
                late = _time(events[-1][0])
                self._refuse(f"an event at {late} lies above its watermark {_time(key)}")
            # Sorting a sorted list is the fastest check that it is sorted.
            if sorted(events, key=KEY) != events:
                self._refuse("a batch is not in the order of its tokens")
        self.eligible = self._is_eligible(key, has_events=bool(events))
        self.watermark, self._token = reached
        if not events or self.opening.topology:
            return
        self.buffered += weight(len(events), size)
        if self.runs:
            last = self.runs[-1]
            # Do not extend a run that is being consumed: its events are freed at its end.
            if not last.start and last.size + size <= coalesced:
                last.events.extend(events)
                last.size += size
                last.last = events[-1][0]
                return
        self.runs.append(_Run(events, size))

    def _is_eligible(self, key: bytes, *, has_events: bool) -> bool:
        """Return whether a watermark may become the high water mark
        (docs/protocol.md#sharded-cluster)."""
        if not self.opening.topology:
            return key != self._skipped
        if has_events:
            return False
        return self.eligible or (
            self.has_replied and self.watermark is not None and key > self.watermark
        )

    def _refuse(self, message: str) -> NoReturn:
        raise MergeOrderError(self.opening.remote, message)

    def bound(self, count: int, bound: bytes) -> bytes:
        """Return the smaller of ``bound`` and the sort key of the remote's ``count``-th event."""
        for run in self.runs:
            left = len(run.events) - run.start
            if count <= left:
                return min(bound, run.events[run.start + count - 1][0])
            count -= left
        return bound

    def cut(self, bound: bytes, onto: list[Event]) -> tuple[list[Event], int]:
        """Remove the events up to and including ``bound``.

        Return ``onto`` extended by these events, and the size of these events in bytes.
        """
        total = 0
        while self.runs and self.runs[0].last <= bound:
            run = self.runs.popleft()
            total += run.size
            if onto:
                onto.extend(run.events[run.start :] if run.start else run.events)
            else:
                onto = run.events[run.start :] if run.start else run.events
        if self.runs:
            run = self.runs[0]
            end = bisect_right(run.events, bound, lo=run.start, key=KEY)
            if end > run.start:
                part = run.events[run.start : end]
                size = sum(map(len, map(BSON, part)))
                run.start = end
                run.size -= size
                total += size
                onto.extend(part)
        return onto, total

    def cut_off(self, bound: bytes) -> None:
        """Drop the events from ``bound`` on."""
        while self.runs and self.runs[-1].last >= bound:
            run = self.runs[-1]
            end = bisect_left(run.events, bound, lo=run.start, key=KEY)
            gone = run.events[end:]
            dropped = sum(map(len, map(BSON, gone)))
            self.buffered -= weight(len(gone), dropped)
            if end == run.start:
                self.runs.pop()
                continue
            del run.events[end:]
            run.size -= dropped
            run.last = run.events[-1][0]

    def fail(self) -> None:
        """Drop all events and the watermark, as if the remote had never replied."""
        self.runs.clear()
        self.buffered = 0
        self.watermark, self._token = None, b""


def _time(key: bytes) -> str:
    """Return the digits of a sort key's cluster time: errors show no namespace and no document."""
    return key[:TIME_DIGITS].decode("ascii", "replace")
