"""The merge of sorted runs behind a gate (docs/design.md#the-merge)."""

import sys
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from sortedcontainers import SortedList

from router.block_sizes import DEFAULT_BLOCK_SIZES, BlockSizes

Event = tuple[bytes, bytes]
"""A change event: its sort key and its BSON."""

_KEY: Final = itemgetter(0)
_BSON: Final = itemgetter(1)

EVENT_OVERHEAD: Final = 300
"""Bytes of memory that an event takes besides its BSON: its sort key, and Python's objects."""


def weight(events: int, size: int) -> int:
    """Return the bytes of memory that ``events`` events of ``size`` bytes in all take."""
    return size + EVENT_OVERHEAD * events


class MergeOrderError(Exception):
    """A remote broke its promise: a batch out of order, or a promise that went backwards."""

    def __init__(self, remote: int, message: str) -> None:
        super().__init__(f"remote {remote}: {message}")
        self.remote = remote


class Block(NamedTuple):
    """Merged events in order, with only the last event's sort key.

    ``size`` is their size in bytes. ``shares`` maps each remote to the memory that its events take.
    """

    events: list[bytes]
    last_key: bytes
    size: int
    shares: Mapping[int, int]


class _Run:
    """The rest of one or more batches of a remote; ``events`` before ``start`` are consumed."""

    __slots__ = ("events", "last", "size", "start")

    def __init__(self, events: list[Event], size: int) -> None:
        self.events = events
        self.start = 0
        self.size = size
        self.last = events[-1][0]


class _Remote:
    """A remote's buffered runs and its latest promise."""

    __slots__ = ("buffered", "eligible", "promise", "promise_raw", "runs", "topology")

    def __init__(self, *, topology: bool) -> None:
        self.topology = topology
        self.runs: deque[_Run] = deque()
        self.buffered = 0
        self.promise: bytes | None = None
        self.promise_raw = b""
        self.eligible = not topology

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
            end = bisect_right(run.events, bound, lo=run.start, key=_KEY)
            if end > run.start:
                part = run.events[run.start : end]
                size = sum(map(len, map(_BSON, part)))
                run.start = end
                run.size -= size
                total += size
                onto.extend(part)
        return onto, total


class Merger:
    """Merges the batches of many remotes into blocks of events in sort key order.

    An event is released once every remote has promised to send nothing below it. Blocks are small
    regardless of the number of remotes, so that a merge works on data in the processor's caches.

    Rules: docs/design.md#the-merge; docs/protocol.md#cursor-replies and
    docs/protocol.md#sharded-cluster.
    """

    def __init__(self, sizes: BlockSizes = DEFAULT_BLOCK_SIZES) -> None:
        self._sizes = sizes
        self._remotes: dict[int, _Remote] = {}
        # Remotes with buffered events. Most remotes have none most of the time.
        self._full: dict[int, _Remote] = {}
        self._silent: set[int] = set()
        self._retired: set[int] = set()
        self._promises: SortedList[tuple[bytes, int]] = SortedList()
        self._ahead: deque[Block] = deque()
        self._ahead_size = 0
        self.buffered = 0
        """Bytes of memory that the unreleased events of all remotes take."""

    def add_remote(
        self, remote: int, *, promise: bytes | None = None, topology: bool = False
    ) -> None:
        """Add a remote; nothing is released before its first promise.

        ``promise`` is a sort key, known beforehand, below which the remote cannot send anything. It
        holds the gate, although the remote did not send it. ``topology`` marks the config server's
        remote, whose promises become the high water mark only under its own rules.
        """
        state = _Remote(topology=topology)
        self._remotes[remote] = state
        if promise is None:
            self._silent.add(remote)
        else:
            state.promise = promise
            state.eligible = False
            self._promises.add((promise, remote))

    def retire_remote(self, remote: int, *, before: bytes | None = None) -> None:
        """Stop waiting for a remote: it no longer holds the gate, and its events are released.

        With ``before``, only its events that sort below that key are released.
        """
        state = self._remotes[remote]
        if before is not None:
            self._cut_off(remote, state, before)
        self._silent.discard(remote)
        if state.promise is not None:
            self._promises.remove((state.promise, remote))
        if state.runs:
            self._retired.add(remote)
        else:
            del self._remotes[remote]

    def _cut_off(self, remote: int, state: _Remote, bound: bytes) -> None:
        """Drop the remote's events from ``bound`` on."""
        while state.runs and state.runs[-1].last >= bound:
            run = state.runs[-1]
            end = bisect_left(run.events, bound, lo=run.start, key=_KEY)
            gone = run.events[end:]
            dropped = sum(map(len, map(_BSON, gone)))
            held = weight(len(gone), dropped)
            state.buffered -= held
            self.buffered -= held
            if end == run.start:
                state.runs.pop()
                continue
            del run.events[end:]
            run.size -= dropped
            run.last = run.events[-1][0]
        if not state.runs:
            self._full.pop(remote, None)

    def add_batch(
        self,
        remote: int,
        events: list[Event],
        pbrt: bytes,
        key: bytes,
        size: int | None = None,
        *,
        marks: bool = True,
    ) -> None:
        """Add one batch: ``events`` in order, then the promise ``pbrt``, whose key is ``key``.

        ``size`` is the size of the events in bytes, computed here if absent. The merger takes
        ownership of the list. Without ``marks`` the promise never becomes the high water mark.
        Raises MergeOrderError, and adds nothing, if the batch is out of order, goes below the
        remote's earlier promise or above its new one.
        """
        state = self._remotes[remote]
        promised = state.promise
        if promised is not None and key < promised:
            raise MergeOrderError(
                remote, f"its promise went back from {_time(promised)} to {_time(key)}"
            )
        if events:
            if promised is not None and events[0][0] < promised:
                raise MergeOrderError(
                    remote,
                    f"an event at {_time(events[0][0])} came after the promise {_time(promised)}",
                )
            if events[-1][0] > key:
                raise MergeOrderError(
                    remote,
                    f"an event at {_time(events[-1][0])} lies above its promise {_time(key)}",
                )
            # Sorting a sorted list is the fastest check that it is sorted.
            if sorted(events, key=_KEY) != events:
                raise MergeOrderError(remote, "a batch is not in the order of its tokens")
        eligible = marks and self._is_eligible(state, key, has_events=bool(events))
        if promised is None:
            self._silent.discard(remote)
        else:
            self._promises.remove((promised, remote))
        self._promises.add((key, remote))
        state.promise = key
        state.promise_raw = pbrt
        state.eligible = eligible
        if events and not state.topology:
            self._buffer(state, events, size)
            self._full[remote] = state

    def _is_eligible(self, state: _Remote, key: bytes, *, has_events: bool) -> bool:
        """Return whether a promise may become the high water mark
        (docs/protocol.md#sharded-cluster)."""
        if not state.topology:
            return True
        if has_events:
            return False
        return state.eligible or (
            bool(state.promise_raw) and state.promise is not None and key > state.promise
        )

    def _buffer(self, state: _Remote, events: list[Event], size: int | None) -> None:
        if size is None:
            size = sum(map(len, map(_BSON, events)))
        held = weight(len(events), size)
        state.buffered += held
        self.buffered += held
        if state.runs:
            last = state.runs[-1]
            # Do not extend a run that is being consumed: its events are freed at its end.
            if not last.start and last.size + size <= self._sizes.coalesce_bytes:
                last.events.extend(events)
                last.size += size
                last.last = events[-1][0]
                return
        state.runs.append(_Run(events, size))

    @property
    def gate(self) -> bytes | None:
        """The smallest promise: nothing beyond it is released. None while a remote is silent."""
        if self._silent or not self._promises:
            return None
        key: bytes = self._promises[0][0]
        return key

    @property
    def gate_holder(self) -> int | None:
        """The remote with the smallest promise; a silent remote precedes all others."""
        if self._silent:
            return min(self._silent)
        if not self._promises:
            return None
        holder: int = self._promises[0][1]
        return holder

    @property
    def mark(self) -> tuple[bytes, bytes] | None:
        """The smallest promise, as sort key and raw token, if it may become a high water mark.

        It is the mark of a client that has received all blocks, when nothing is ready.
        """
        if self._silent or not self._promises:
            return None
        key, remote = self._promises[0]
        state = self._remotes[remote]
        return (key, state.promise_raw) if state.eligible else None

    @property
    def ahead(self) -> bool:
        """Whether a block that was merged ahead is available to ``next_block``."""
        return bool(self._ahead)

    @property
    def holds(self) -> bool:
        """Whether events are buffered that are not merged yet."""
        return bool(self._full)

    @property
    def ready(self) -> bool:
        """Whether ``next_block`` has anything to release."""
        if self._ahead:
            return True
        gate = self.gate
        head = None if gate is None else self.head
        return head is not None and gate is not None and head <= gate

    @property
    def head(self) -> bytes | None:
        """The smallest sort key among the buffered events that are not merged yet."""
        firsts = [remote.runs[0] for remote in self._full.values()]
        return min([run.events[run.start][0] for run in firsts], default=None)

    @property
    def tail(self) -> bytes | None:
        """The largest sort key among the buffered events that are not merged yet."""
        return max([remote.runs[-1].last for remote in self._full.values()], default=None)

    def promise(self, remote: int) -> bytes | None:
        """Return the sort key of the remote's promise, or None while it is silent."""
        return self._remotes[remote].promise

    def behind(self, key: bytes) -> Sequence[int]:
        """Return the remotes with promises below ``key``, lowest first, without silent ones."""
        return [remote for _, remote in self._promises.irange(maximum=(key, -1))]

    def holding(self, key: bytes) -> Sequence[int]:
        """Return the remotes whose promise is exactly ``key``."""
        return [remote for _, remote in self._promises.irange((key, -1), (key, sys.maxsize))]

    def buffered_bytes(self, remote: int) -> int:
        """Return the bytes of memory that the remote's unreleased events take."""
        return self._remotes[remote].buffered

    def merge_ahead(self, size: int) -> None:
        """Merge ready events before ``next_block`` needs them, up to ``size`` bytes ahead."""
        while self._ahead_size < size and (block := self._merge()) is not None:
            self._ahead.append(block)
            self._ahead_size += block.size

    def next_block(self) -> Block | None:
        """Release the next block, or return None when nothing is ready.

        Events with equal keys come in the order of their remotes' numbers.
        """
        if self._ahead:
            self._ahead_size -= self._ahead[0].size
        block = self._ahead.popleft() if self._ahead else self._merge()
        if block is not None:
            for remote, held in block.shares.items():
                self.buffered -= held
                if remote in self._remotes:
                    self._remotes[remote].buffered -= held
        return block

    def _merge(self) -> Block | None:
        bound = self.gate
        if bound is None or not self._full:
            return None
        share = 1 + self._sizes.events // len(self._full)
        for state in self._full.values():
            bound = state.bound(share, bound)
        merged: list[Event] = []
        total = 0
        shares: dict[int, int] = {}
        for remote in sorted(self._full):
            count = len(merged)
            merged, size = self._full[remote].cut(bound, merged)
            if count := len(merged) - count:
                total += size
                shares[remote] = weight(count, size)
        if not shares:
            return None
        for remote in shares:
            if not self._remotes[remote].runs:
                del self._full[remote]
                if remote in self._retired:
                    self._retired.discard(remote)
                    del self._remotes[remote]
        if len(shares) > 1:
            # Timsort finds the presorted runs and merges them. It is stable: ties keep their order.
            merged.sort(key=_KEY)
        # Free the keys, which are no longer needed, while they are in the caches.
        return Block(list(map(_BSON, merged)), merged[-1][0], total, shares)


def _time(key: bytes) -> str:
    """Return the digits of a sort key's cluster time: errors show no namespace and no document."""
    return key[:18].decode("ascii", "replace")
