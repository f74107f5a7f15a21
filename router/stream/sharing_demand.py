"""Whether enough clients read a stream for it to be shared (docs/sharing.md), without I/O."""

from collections import Counter
from math import inf
from typing import Any, Final

from router.stream.readers.fan_out import Traffic

_PASSES_TO_STAY: Final = 0.5
"""A stream is shared on by few readers if an event passes at least so many of their filters on
average: streams of their own would send it so often."""

_BYTES_OF_A_SCAN: Final = 2000
"""Bytes of an event that a shard sends for less than another scan of its oplog entry costs it
(docs/performance.md#streams-of-many-collections)."""

_PAUSE_IN_HOLDS: Final = 60
"""A stream that costs more than it saves is shared again after so many times ``hold``."""

MOST_PAUSED: Final = 1000
"""Maximum of paused streams that are remembered, and of shared ones that have lost their readers;
the latest are kept."""


def _remember(memory: dict[bytes, Any], key: bytes, value: object) -> None:
    """Set a stream's value; drop that which was set first if there are too many."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > MOST_PAUSED:
        del memory[next(iter(memory))]


class ShareableStream:
    """A stream that clients could share: the readers of each part, and the parts' costs.

    It is shared before ``shared_until``: minus infinity for not at all, infinity for no known end.
    """

    def __init__(self) -> None:
        self.parts: Counter[bytes] = Counter()
        self.cost = 0
        self.shared_until = -inf
        self.let_through = 0.0


class SharingDemand:
    """The different parts that clients read of each stream that they could share.

    A stream is shared from the ``least``-th part on, and no longer when there have been less than
    half as many for ``hold`` seconds, unless two or more together get half as many events as it
    has. It is paused when the shards send much more than the parts need, which costs more than the
    streams that it saves, and when the router has been behind for ``hold`` seconds with events that
    few readers get, since the shards can leave these out. This is remembered, too, if all readers
    leave and come back, but keeps no stream open without them. Streams are named by their keys
    (``Source.key``); all times are on the loop's clock.
    """

    def __init__(self, least: int, hold: float) -> None:
        self.least = least
        self._hold = hold
        self._streams: dict[bytes, ShareableStream] = {}
        self._left: dict[bytes, ShareableStream] = {}
        """The streams that were shared when their last reader left."""
        self._paused_until: dict[bytes, float] = {}

    def join(self, key: bytes, part: bytes, now: float, *, cost: int = 0, begins: bool) -> None:
        """Count a reader of ``part``; ``begins`` is whether the count may begin the sharing.

        ``cost`` is the part's, the same for all of its readers.
        """
        state = self._streams.setdefault(key, self._left.pop(key, ShareableStream()))
        state.cost += 0 if part in state.parts else cost
        state.parts[part] += 1
        if begins and len(state.parts) >= self.least:
            state.shared_until = inf
        self._begin_or_end(state, now)

    def leave(self, key: bytes, part: bytes, now: float, *, cost: int = 0) -> None:
        """Stop counting a reader."""
        state = self._streams[key]
        state.parts[part] -= 1
        if not state.parts[part]:
            del state.parts[part]
            state.cost -= cost
        self._begin_or_end(state, now)
        if not state.parts:
            del self._streams[key]
            if now < state.shared_until:
                _remember(self._left, key, state)

    def record(self, key: bytes, traffic: Traffic, now: float) -> None:
        """Record the recent traffic of a stream that is read and shared."""
        state = self._streams.get(key)
        if state is None:
            return
        state.let_through = traffic.let_through
        costly = traffic.unwatched_bytes > len(state.parts) * _BYTES_OF_A_SCAN
        behind = traffic.behind_since is not None and traffic.behind_since <= now - self._hold
        late = behind and state.let_through < _PASSES_TO_STAY
        if (costly or late) and self.is_shared(key, now):
            self.pause(key, now + _PAUSE_IN_HOLDS * self._hold)
            state.let_through = 0.0
        self._begin_or_end(state, now)

    def pause(self, key: bytes, until: float) -> None:
        """Do not share the stream for a while."""
        _remember(self._paused_until, key, until)

    def _begin_or_end(self, state: ShareableStream, now: float) -> None:
        """Begin or end the time for which a stream with few parts is shared on."""
        count = len(state.parts)
        few = count * 2 < self.least
        if few and (count < 2 or state.let_through < _PASSES_TO_STAY):
            state.shared_until = min(state.shared_until, now + self._hold)
        elif now < state.shared_until:
            state.shared_until = inf

    def of(self, key: bytes) -> ShareableStream:
        """Return what is counted of a stream, which may have no readers."""
        return self._streams.get(key) or self._left.get(key) or ShareableStream()

    def is_shared(self, key: bytes, now: float) -> bool:
        """Return whether the parts of a stream should share it."""
        return now < self.of(key).shared_until and not self.is_paused(key, now)

    def is_paused(self, key: bytes, now: float) -> bool:
        """Return whether the stream has cost more than it saved, and is not shared for a while."""
        return now < self._paused_until.get(key, -inf)
