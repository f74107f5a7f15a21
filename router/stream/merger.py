"""The merge of sorted runs behind a low watermark (docs/design.md#the-merge)."""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from router.memory import weight
from router.stream.remote_queue import BSON, KEY, RemoteQueue
from router.stream_settings import DEFAULT_BLOCK_SIZES, BlockSizes
from shard_client.remote_cursor.cursor_reply import Event, Watermark


@dataclass(slots=True)
class Block:
    """Merged events in order: what the merge releases, and what a log keeps.

    ``size`` is their size in bytes. ``last_key`` is the sort key of the last event, None if it has
    not been extracted. ``shares`` maps each remote to the memory that its events take. ``first`` is
    the number of the first event in a log.
    """

    events: list[bytes]
    size: int
    last_key: bytes | None = None
    shares: Mapping[int, int] = field(default_factory=dict)
    first: int = 0

    @property
    def memory(self) -> int:
        """Bytes of memory that the events take."""
        return weight(len(self.events), self.size)

    @property
    def end(self) -> int:
        """The number after that of the last event in a log."""
        return self.first + len(self.events)


class Merger:
    """Merges the batches of many remotes into blocks of events in sort key order.

    An event is released once every remote has a watermark at or above it. Blocks are small
    regardless of the number of remotes, so that a merge works on data in the processor's caches.

    Rules: docs/design.md#the-merge; docs/protocol.md#cursor-replies and
    docs/protocol.md#sharded-cluster.
    """

    def __init__(self, sizes: BlockSizes = DEFAULT_BLOCK_SIZES) -> None:
        self._sizes = sizes
        self.remotes: dict[int, RemoteQueue] = {}
        """The remotes that the merge waits for, by number."""
        # Remotes with buffered events. Most remotes have none most of the time.
        self._full: dict[int, RemoteQueue] = {}
        self._silent: set[int] = set()
        self._watermarks: SortedList[tuple[bytes, int]] = SortedList()
        self._ahead: deque[Block] = deque()
        self._ahead_size = 0
        self.buffered = 0
        """Bytes of memory that the unreleased events of all remotes take."""

    def add_remote(self, remote: RemoteQueue) -> None:
        """Add a remote; nothing is released before its first watermark.

        One that is known beforehand holds the low watermark too.
        """
        number = remote.opening.remote
        self.remotes[number] = remote
        if remote.watermark is None:
            self._silent.add(number)
        else:
            self._watermarks.add((remote.watermark, number))

    def retire_remote(self, number: int, *, before: bytes | None = None) -> None:
        """Stop waiting for a remote: it no longer holds the low watermark back, and its events are
        released.

        With ``before``, only its events that sort below that key are released.
        """
        remote = self.remotes.pop(number)
        if before is not None:
            held = remote.buffered
            remote.cut_off(before)
            self.buffered += remote.buffered - held
            if not remote.runs:
                self._full.pop(number, None)
        self._silent.discard(number)
        if remote.watermark is not None:
            self._watermarks.remove((remote.watermark, number))

    def add_batch(self, number: int, events: list[Event], reached: Watermark, size: int) -> None:
        """Add one batch of a remote: ``events`` in order, then the watermark ``reached``.

        ``size`` is the size of the events in bytes. The merger takes ownership of the list. Raises
        MergeOrderError, and adds nothing, if the batch is out of order, goes below the remote's
        earlier watermark or above its new one.
        """
        remote = self.remotes[number]
        watermark, held = remote.watermark, remote.buffered
        remote.add_batch(events, reached, size, self._sizes.coalesce_bytes)
        if watermark is None:
            self._silent.discard(number)
        else:
            self._watermarks.remove((watermark, number))
        self._watermarks.add((reached.key, number))
        if remote.buffered != held:
            self.buffered += remote.buffered - held
            self._full[number] = remote

    def fail(self) -> None:
        """Drop all events and watermarks: nothing is released from now on."""
        self._full.clear()
        self._watermarks = SortedList()
        self._ahead.clear()
        self._ahead_size = self.buffered = 0
        self._silent = set(self.remotes)
        for remote in self.remotes.values():
            remote.fail()

    @property
    def low_watermark(self) -> bytes | None:
        """The smallest watermark: nothing beyond it is released. None while a remote is silent."""
        if self._silent or not self._watermarks:
            return None
        key: bytes = self._watermarks[0][0]
        return key

    @property
    def slowest_remote(self) -> int | None:
        """The remote with the smallest watermark; a silent remote precedes all others."""
        if self._silent:
            return min(self._silent)
        if not self._watermarks:
            return None
        slowest: int = self._watermarks[0][1]
        return slowest

    @property
    def high_water_mark(self) -> Watermark | None:
        """The smallest watermark, if one of the remotes that have it makes it a high water mark.

        It is that of a client that has received all blocks, when nothing is ready.
        """
        key = self.low_watermark
        if key is None:
            return None
        return next(filter(None, (self.remotes[number].mark for number in self.holding(key))), None)

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
        low_watermark = self.low_watermark
        head = None if low_watermark is None else self.head
        return head is not None and low_watermark is not None and head <= low_watermark

    @property
    def head(self) -> bytes | None:
        """The smallest sort key among the buffered events that are not merged yet."""
        firsts = [remote.runs[0] for remote in self._full.values()]
        return min([run.events[run.start][0] for run in firsts], default=None)

    @property
    def tail(self) -> bytes:
        """The largest sort key among the buffered events that are not merged yet, or b""."""
        return max([remote.runs[-1].last for remote in self._full.values()], default=b"")

    def behind(self, key: bytes) -> Sequence[int]:
        """Return the remotes with watermarks below ``key``, lowest first, without silent ones."""
        return [remote for _, remote in self._watermarks.irange(maximum=(key, -1))]

    def holding(self, key: bytes) -> Sequence[int]:
        """Return the remotes whose watermark is exactly ``key``."""
        return [remote for _, remote in self._watermarks.irange((key, -1), (key, sys.maxsize))]

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
            for number, held in block.shares.items():
                self.buffered -= held
                if number in self.remotes:
                    self.remotes[number].buffered -= held
        return block

    def _merge(self) -> Block | None:
        bound = self.low_watermark
        if bound is None or not self._full:
            return None
        share = 1 + self._sizes.events // len(self._full)
        for remote in self._full.values():
            bound = remote.bound(share, bound)
        merged: list[Event] = []
        total = 0
        shares: dict[int, int] = {}
        for number in sorted(self._full):
            before = len(merged)
            merged, size = self._full[number].cut(bound, merged)
            if count := len(merged) - before:
                total += size
                shares[number] = weight(count, size)
        if not shares:
            return None
        for number in shares:
            if not self._full[number].runs:
                del self._full[number]
        if len(shares) > 1:
            # Timsort finds the presorted runs and merges them. It is stable: ties keep their order.
            merged.sort(key=KEY)
        # Free the keys, which are no longer needed, while they are in the caches.
        return Block(list(map(BSON, merged)), total, merged[-1][0], shares)
