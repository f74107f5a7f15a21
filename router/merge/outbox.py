"""Events that are merged and wait to be handed out, cut to what a client asked for."""

from bisect import bisect_right
from itertools import accumulate
from operator import itemgetter
from typing import Final

from router.merge.merger import Block, Event

_BSON: Final = itemgetter(1)

ELEMENT_OVERHEAD: Final = 10
"""Bytes that mongos reckons on top of each event in a batch: type, array index, terminator."""


class Outbox:
    """The block being handed out: many small takes, or few large ones, never a copy of an event."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._start = 0
        self._size = 0
        self._shares: dict[int, int] = {}

    def __bool__(self) -> bool:
        return self._start < len(self._events)

    def put(self, block: Block) -> None:
        """Fill the empty outbox."""
        self._events, self._start, self._size = block.events, 0, block.size
        self._shares = dict(block.shares)

    def share(self, remote: int) -> int:
        """Bytes of the current block that came from ``remote``, until the block is used up."""
        return self._shares.get(remote, 0)

    def take(self, max_events: int | None, space: int, *, first: bool) -> tuple[list[Event], int]:
        """Take at most ``max_events`` events that fit into ``space`` bytes, and their bytes.

        An event needs its size at the time it is put; those before it their size and the array
        overhead. ``first``: the batch is empty so far, so one event goes whatever its size
        (docs/protocol.md, section 2).
        """
        count = len(self._events) - self._start
        if max_events is not None and max_events < count:
            count = max_events
        if count <= 0:
            return [], 0
        whole = not self._start and count == len(self._events)
        if whole and self._size + ELEMENT_OVERHEAD * count <= space:
            taken, size = self._events, self._size
        else:
            taken = self._events[self._start : self._start + count]
            sizes = list(accumulate(map(len, map(_BSON, taken))))
            if sizes[-1] + ELEMENT_OVERHEAD * count > space:
                fits = bisect_right(
                    range(count), space, key=lambda i: sizes[i] + ELEMENT_OVERHEAD * i
                )
                fits = max(fits, 1) if first else fits
                taken = taken[:fits]
            size = sizes[len(taken) - 1] if taken else 0
        self._start += len(taken)
        self._size -= size
        if self._start >= len(self._events):
            self._events, self._start, self._size = [], 0, 0
            self._shares = {}
        return taken, size
