"""Log of merged events, shared by all its readers: a ring of blocks, bounded in bytes."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Final

from router.limits.memory import EVENT_OVERHEAD, weight
from shard_client.remote_cursor.cursor_reply import event_key

ELEMENT_OVERHEAD: Final = 10
"""Bytes that mongos counts on top of each event in a batch: type, array index, terminator."""

JOIN_BYTES: Final = 64 * 1024
"""Size up to which a log joins blocks, so that a log of single events has few of them."""

_first: Final = attrgetter("first")
_last_key: Final = attrgetter("last_key")


@dataclass(slots=True)
class _Block:
    """Events of ``size`` bytes, of which ``first`` is the number of the first one."""

    first: int
    events: list[bytes]
    size: int

    @property
    def memory(self) -> int:
        return weight(len(self.events), self.size)

    @property
    def end(self) -> int:
        """The number after that of the last event."""
        return self.first + len(self.events)

    @property
    def last_key(self) -> bytes:
        return event_key(self.events[-1])


class EventLog:
    """Merged events by number, oldest first; ``trim`` drops the oldest.

    Each reader keeps the number of its next event. The log holds the numbers from ``start`` up to
    ``end``. ``floor`` is a sort key: every event beyond it is in the log or has not been released
    yet (docs/design.md#many-clients). The sort keys of events are rarely needed, so the log does
    not store them. Blocks are joined up to ``JOIN_BYTES``.
    """

    def __init__(self, floor: bytes) -> None:
        self.floor = floor
        self.start = 0
        self.end = 0
        self.memory = 0
        """Bytes of memory that the events in the log take."""
        self._blocks: list[_Block] = []

    def append(self, events: list[bytes], size: int) -> None:
        """Append events, ``size`` bytes in all; the log takes ownership of the list."""
        count = len(events)
        if self._blocks and (last := self._blocks[-1]).size + size <= JOIN_BYTES:
            last.events += events
            last.size += size
        else:
            self._blocks.append(_Block(self.end, events, size))
        self.end += count
        self.memory += size + EVENT_OVERHEAD * count

    def trim(self, keep: int) -> None:
        """Drop the oldest blocks beyond ``keep`` bytes of memory; the newest block always stays."""
        gone, memory = 0, self.memory
        while memory > keep and gone < len(self._blocks) - 1:
            memory -= self._blocks[gone].memory
            gone += 1
        self._drop(gone)

    def clear(self) -> None:
        """Remove all events."""
        self._blocks.clear()
        self.memory = 0

    def forget(self, number: int) -> None:
        """Drop the blocks whose events all come before ``number``."""
        gone = 0
        while gone < len(self._blocks) and self._blocks[gone].end <= number:
            gone += 1
        self._drop(gone)

    def _drop(self, gone: int) -> None:
        if gone:
            last = self._blocks[gone - 1]
            self.floor, self.start = last.last_key, last.end
            self.memory -= sum(block.memory for block in self._blocks[:gone])
            del self._blocks[:gone]

    def number_beyond(self, key: bytes) -> int:
        """Return the number of the first event in the log whose sort key is beyond ``key``."""
        index = bisect_right(self._blocks, key, key=_last_key)
        if index == len(self._blocks):
            return self.end
        block = self._blocks[index]
        return block.first + bisect_right(block.events, key, key=event_key)

    def events_with_key(self, number: int, key: bytes) -> list[bytes]:
        """Return the events from ``number`` on, within its block, whose sort key is ``key``."""
        block, offset = self._at(number)
        if event_key(block.events[offset]) != key:
            return []
        return block.events[offset : bisect_right(block.events, key, lo=offset, key=event_key)]

    def read(
        self, number: int, max_events: int | None, space: int, *, first: bool
    ) -> tuple[list[bytes], int]:
        """Return events of one block from ``number`` on, and their size in bytes.

        At most ``max_events`` are returned, and only those that fit into ``space``, as for ``cut``.
        """
        block, offset = self._at(number)
        end = None if max_events is None else offset + max_events
        return cut(block.events[offset:end], space, first=first)

    def rest_of_block(self, number: int, memory: int | None = None) -> list[bytes]:
        """Return a copy of the events from ``number`` up to the end of its block.

        With ``memory``, about so many bytes of memory of them, but one event at least: more where
        events with equal sort keys follow.
        """
        block, offset = self._at(number)
        end = len(block.events)
        if memory is not None:
            held = accumulate(len(event) + EVENT_OVERHEAD for event in block.events[offset:])
            fits = next((count for count, size in enumerate(held, 1) if size >= memory), end)
            if offset + fits < end:
                last = event_key(block.events[offset + fits - 1])
                end = bisect_right(block.events, last, lo=offset + fits, key=event_key)
        return block.events[offset:end]

    def _at(self, number: int) -> tuple[_Block, int]:
        blocks = self._blocks
        block = blocks[-1]
        if number < block.first:
            block = blocks[bisect_right(blocks, number, key=_first) - 1]
        return block, number - block.first


def cut(events: list[bytes], space: int, *, first: bool) -> tuple[list[bytes], int]:
    """Return the longest prefix of ``events`` that fits into a batch, and its size in bytes.

    It fits into ``space`` bytes: the event being added counts with its size; each event before it
    counts with its size and the array overhead. With ``first`` the batch is still empty, so one
    event is returned whatever its size (docs/protocol.md#cursor-replies).
    """
    count, sizes = len(events), list(accumulate(map(len, events)))
    if count and sizes[-1] + ELEMENT_OVERHEAD * count > space:
        fits = bisect_right(range(count), space, key=lambda i: sizes[i] + ELEMENT_OVERHEAD * i)
        events = events[: max(fits, 1) if first else fits]
    return events, sizes[len(events) - 1] if events else 0
