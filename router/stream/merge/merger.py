"""The merge of sorted runs behind a low watermark (docs/design.md#the-merge)."""

import sys
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple

from bson.timestamp import Timestamp
from sortedcontainers import SortedList

from router.limits.memory import weight
from shard_client.bson.resume_token import TIME_DIGITS
from shard_client.remote_cursor.cursor_reply import Event, KeyedToken

BLOCK_EVENTS: Final = 2000
"""Approximate maximum of events per block: few enough to stay in a core's own cache during the
merge, many enough that cutting them out of each remote's run costs little."""

_sort_key: Final = itemgetter(0)
_raw_event: Final = itemgetter(1)
"""An event's sort key and its bytes."""

SkippedTime = bytes | None
"""The cluster time, as the beginning of a sort key, at which a remote's invalidate is skipped: None
for none, where every invalidate ends the remote; or ``FIRST_EVENT``."""

FIRST_EVENT: Final = b""
"""The cluster time of the remote's first event, which has not arrived."""


class MergeOrderError(Exception):
    """A remote broke its watermark: a batch out of order, or a watermark that went backwards."""


class _Run:
    """The rest of a batch of a remote; ``events`` before ``start`` are consumed."""

    def __init__(self, events: list[Event], size: int) -> None:
        self.events = events
        self.start = 0
        self.size = size
        self.last = events[-1][0]


class MergeInput:
    """A remote as its merge sees it: where it begins and ends, its watermark, its sorted events.

    Its cursor is on ``target`` (a shard's id, or "config") at ``host``; ``topology`` marks the one
    on ``config.shards``. It begins at ``opens_at``: at ``start_at``, inclusive, or after the raw
    token of an invalidate.

    ``watermark`` is a sort key, b"" until the first reply. A watermark that is passed to the
    constructor is assumed: the shard cannot have an event below it, as it joined later.
    The remote's change stream has ended at its watermark once it is ``invalidated``; its shard is
    gone once the watermark has reached the sort key ``removed_at``.
    """

    number: int
    """Its number in the merge, which ``Merger.add_remote`` gives it."""

    def __init__(
        self,
        target: str,
        host: str,
        start_at: Timestamp,
        *,
        topology: bool = False,
        watermark: bytes = b"",
        skipped_time: SkippedTime = None,
    ) -> None:
        self.target = target
        self.host = host
        self.start_at = start_at
        self.opens_at: Timestamp | bytes = start_at
        self.topology = topology
        self.runs: deque[_Run] = deque()
        self.buffered = 0
        """Bytes of memory that its unreleased events take."""
        self.watermark = watermark
        self._can_be_mark = not (watermark or topology)
        """Whether the watermark may become the high water mark of clients."""
        self.invalidated = False
        self.removed_at: bytes | None = None
        self.skipped_time = skipped_time
        self._token = b""
        self._skipped = b""

    @property
    def has_replied(self) -> bool:
        """Whether the first reply has arrived."""
        return bool(self._token)

    @property
    def mark(self) -> KeyedToken | None:
        """The watermark, if it may become the high water mark."""
        is_mark = self.watermark and self._can_be_mark
        return KeyedToken(self.watermark, self._token) if is_mark else None

    # Its life.

    def record_first_event(self, key: bytes) -> None:
        """Record the sort key of a reply's first event, before ``record_invalidate``."""
        if self.skipped_time == FIRST_EVENT:
            # Only the cause of an invalidate has its cluster time.
            self.skipped_time = key[:TIME_DIGITS]

    def record_invalidate(self, key: bytes) -> bool:
        """Record that an invalidate has ended its change stream; return whether to skip it."""
        self.record_first_event(key)
        if self.skipped_time is not None and key.startswith(self.skipped_time):
            # A client cannot resume after an invalidate that it has not received.
            self._skipped = key
            return True
        self.invalidated = True
        return False

    # Its events.

    def add_batch(self, events: list[Event], reached: KeyedToken, size: int) -> int:
        """Add one batch: ``events`` of ``size`` bytes in order, then the watermark ``reached``.

        Takes ownership of the list; returns the memory that it takes. Raises MergeOrderError, and
        adds nothing, if the batch is out of order, goes below the earlier watermark or above the
        new one.
        """
        key, watermark = reached.key, self.watermark
        if key < watermark:
            raise MergeOrderError(
                f"its watermark went back from {_time(watermark)} to {_time(key)}"
            )
        if events:
            if events[0][0] < watermark:
                early = _time(events[0][0])
                raise MergeOrderError(
                    f"an event at {early} came after the watermark {_time(watermark)}"
                )
            if events[-1][0] > key:
                late = _time(events[-1][0])
                raise MergeOrderError(f"an event at {late} lies above its watermark {_time(key)}")
            # Sorting a sorted list is the fastest check that it is sorted.
            if sorted(events, key=_sort_key) != events:
                raise MergeOrderError("a batch is not in the order of its tokens")
        self._can_be_mark = self._may_be_mark(key, has_events=bool(events))
        self.watermark, self._token = reached
        if not events or self.topology:
            return 0
        added = weight(len(events), size)
        self.buffered += added
        self.runs.append(_Run(events, size))
        return added

    def _may_be_mark(self, key: bytes, *, has_events: bool) -> bool:
        """Return whether a watermark may become the high water mark
        (docs/protocol.md#sharded-cluster)."""
        if not self.topology:
            return key != self._skipped
        if has_events:
            return False
        return self._can_be_mark or (self.has_replied and key > self.watermark)

    def bound(self, count: int, most: bytes) -> bytes:
        """Return the smaller of ``most`` and the sort key of the remote's ``count``-th event."""
        for run in self.runs:
            left = len(run.events) - run.start
            if count <= left:
                return min(most, run.events[run.start + count - 1][0])
            count -= left
        return most

    def cut(self, bound: bytes) -> tuple[list[Event], int]:
        """Remove the events up to and including ``bound``; return them, and their size in bytes."""
        cut: list[Event] = []
        total = 0
        while self.runs and self.runs[0].last <= bound:
            run = self.runs.popleft()
            total += run.size
            cut += run.events[run.start :]
        if self.runs:
            run = self.runs[0]
            end = bisect_right(run.events, bound, lo=run.start, key=_sort_key)
            if end > run.start:
                part = run.events[run.start : end]
                size = sum(map(len, map(_raw_event, part)))
                run.start = end
                run.size -= size
                total += size
                cut += part
        return cut, total

    def cut_off(self, bound: bytes) -> None:
        """Drop the events from ``bound`` on."""
        while self.runs and self.runs[-1].last >= bound:
            run = self.runs[-1]
            end = bisect_left(run.events, bound, lo=run.start, key=_sort_key)
            gone = run.events[end:]
            dropped = sum(map(len, map(_raw_event, gone)))
            self.buffered -= weight(len(gone), dropped)
            if end == run.start:
                self.runs.pop()
                continue
            del run.events[end:]
            run.size -= dropped
            run.last = run.events[-1][0]

    def clear(self) -> None:
        """Drop all events and the watermark, as if the remote had never replied."""
        self.runs.clear()
        self.buffered = 0
        self.watermark = self._token = b""


def _time(key: bytes) -> str:
    """Return the digits of a sort key's cluster time: errors show no namespace and no document."""
    return key[:TIME_DIGITS].decode("ascii", "replace")


class Block(NamedTuple):
    """Merged events in order, which the merge releases.

    ``size`` is their size in bytes. ``shares`` maps each remote to the memory that its events take.
    """

    events: list[bytes]
    size: int
    shares: Mapping[int, int]


class Merger:
    """Merges the batches of many remotes into blocks of events in sort key order.

    An event is released once every remote has a watermark at or above it. Blocks are small
    regardless of the number of remotes, so that a merge works on data in the processor's caches.

    Rules: docs/design.md#the-merge; docs/protocol.md#cursor-replies and
    docs/protocol.md#sharded-cluster.
    """

    def __init__(self) -> None:
        self.remotes: dict[int, MergeInput] = {}
        """The remotes that the merge waits for, by number."""
        self._numbers = count()
        # Remotes with buffered events. Most remotes have none most of the time.
        self._nonempty: dict[int, MergeInput] = {}
        self._watermarks: SortedList[tuple[bytes, int]] = SortedList()
        self.buffered = 0
        """Bytes of memory that the unreleased events of all remotes take."""

    def add_remote(self, remote: MergeInput) -> None:
        """Add a remote under the next number; nothing is released before its first watermark.

        A remote with an assumed watermark holds the low watermark back from the start.
        """
        remote.number = next(self._numbers)
        self.remotes[remote.number] = remote
        self._watermarks.add((remote.watermark, remote.number))

    def retire_remote(self, number: int, *, before: bytes) -> None:
        """Stop waiting for a remote: it no longer holds the low watermark back.

        Its buffered events that sort below ``before`` are released once the other remotes allow it.
        """
        remote = self.remotes.pop(number)
        held = remote.buffered
        remote.cut_off(before)
        self.buffered += remote.buffered - held
        if not remote.runs:
            self._nonempty.pop(number, None)
        self._watermarks.remove((remote.watermark, number))

    def add_batch(self, number: int, events: list[Event], reached: KeyedToken, size: int) -> None:
        """Add one batch of a remote: ``events`` in order, then the watermark ``reached``.

        ``size`` is the size of the events in bytes. The merger takes ownership of the list. Raises
        MergeOrderError, and adds nothing, if the batch is out of order, goes below the remote's
        earlier watermark or above its new one.
        """
        remote = self.remotes[number]
        watermark = remote.watermark
        added = remote.add_batch(events, reached, size)
        self._watermarks.remove((watermark, number))
        self._watermarks.add((reached.key, number))
        if added:
            self.buffered += added
            self._nonempty[number] = remote

    def clear(self) -> None:
        """Drop all events and watermarks: nothing is released from now on."""
        self._nonempty.clear()
        self._watermarks = SortedList((b"", number) for number in self.remotes)
        self.buffered = 0
        for remote in self.remotes.values():
            remote.clear()

    @property
    def low_watermark(self) -> bytes:
        """The smallest watermark: nothing beyond it is released. b"" while a remote is silent."""
        key: bytes = self._watermarks[0][0] if self._watermarks else b""
        return key

    @property
    def slowest_remote(self) -> int | None:
        """The remote with the smallest watermark; a silent remote precedes all others."""
        slowest: int | None = self._watermarks[0][1] if self._watermarks else None
        return slowest

    @property
    def high_water_mark(self) -> KeyedToken | None:
        """The smallest watermark, if one of the remotes that have it makes it a high water mark.

        It is that of a client that has received all blocks, when nothing is ready.
        """
        marks = (self.remotes[number].mark for number in self.remotes_at(self.low_watermark))
        return next(filter(None, marks), None)

    @property
    def ready(self) -> bool:
        """Whether ``next_block`` has anything to release."""
        low_watermark = self.low_watermark
        firsts = (remote.runs[0] for remote in self._nonempty.values())
        return any(run.events[run.start][0] <= low_watermark for run in firsts)

    @property
    def last_key(self) -> bytes:
        """The largest sort key among the buffered events, or b""."""
        return max([remote.runs[-1].last for remote in self._nonempty.values()], default=b"")

    def remotes_below(self, key: bytes) -> Sequence[int]:
        """Return the remotes with watermarks below ``key``, lowest first, without silent ones."""
        return [remote for mark, remote in self._watermarks.irange(maximum=(key, -1)) if mark]

    def remotes_at(self, key: bytes) -> Sequence[int]:
        """Return the remotes whose watermark is exactly ``key``."""
        return [remote for _, remote in self._watermarks.irange((key, -1), (key, sys.maxsize))]

    def next_block(self) -> Block | None:
        """Release the next block, or return None when nothing is ready.

        Events with equal keys come in the order of their remotes' numbers.
        """
        bound = self.low_watermark
        if not (bound and self._nonempty):
            return None
        share = 1 + BLOCK_EVENTS // len(self._nonempty)
        for remote in self._nonempty.values():
            bound = remote.bound(share, bound)
        merged: list[Event] = []
        total = 0
        shares: dict[int, int] = {}
        for number in sorted(self._nonempty):
            part, size = self._nonempty[number].cut(bound)
            if part:
                merged += part
                total += size
                shares[number] = weight(len(part), size)
        if not shares:
            return None
        for number, held in shares.items():
            remote = self._nonempty[number]
            remote.buffered -= held
            self.buffered -= held
            if not remote.runs:
                del self._nonempty[number]
        if len(shares) > 1:
            # Timsort finds the presorted runs and merges them. It is stable: ties keep their order.
            merged.sort(key=_sort_key)
        # Free the keys, which are no longer needed, while they are in the caches.
        return Block(list(map(_raw_event, merged)), total, shares)
