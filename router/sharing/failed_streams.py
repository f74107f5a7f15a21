"""The shared streams that have failed, and how long clients avoid each of them."""

from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import Final

from shard_client.errors import RESUMABLE_LABEL, CommandError

FIRST_PAUSE: Final = 10.0
"""Seconds for which clients avoid a shared stream after its first failure."""

LONGEST_PAUSE: Final = 3600.0
"""Upper bound of the pause, which doubles with each failure, in seconds."""

MOST_STREAMS: Final = 1000
"""Number of streams that are remembered, those that have failed last."""


@dataclass(slots=True)
class _Failure:
    code_name: str
    at: float
    pause: float

    @property
    def until(self) -> float:
        return self.at + self.pause


class FailedStreams:
    """Remembers for a while which shared streams have failed; does no I/O.

    A shared stream may fail by an event that most of its clients would not receive, and would fail
    again by the next such event. Clients read streams of their own meanwhile, and do not enter it
    for a time that doubles with each failure. It is reset after ``LONGEST_PAUSE`` without one. A
    resumable error, such as a shard's outage, does not double it: it says nothing about events.
    Streams are named by their keys (``Source.key``); all times are on the loop's clock.
    """

    def __init__(self) -> None:
        self._failures: dict[bytes, _Failure] = {}

    def add(self, key: bytes, error: CommandError, entered: float, now: float) -> bool:
        """Record that a stream has failed for a reader that entered it at the time ``entered``.

        Readers that entered it before its last failure report that failure once more. Return
        whether this one is the first to report it.
        """
        name = _name(key)
        last = self._failures.pop(name, None)
        first = True
        if last is None or now - last.until > LONGEST_PAUSE:
            last = _Failure(error.code_name, now, FIRST_PAUSE)
        elif entered > last.at:
            factor = 1 if RESUMABLE_LABEL in error.labels else 2
            last = _Failure(error.code_name, now, min(factor * last.pause, LONGEST_PAUSE))
        else:
            first = False
        self._failures[name] = last
        if len(self._failures) > MOST_STREAMS:
            del self._failures[next(iter(self._failures))]
        return first

    def avoids(self, key: bytes, now: float) -> bool:
        """Return whether no client should enter the stream now."""
        failure = self._failures.get(_name(key)) if self._failures else None
        return failure is not None and now < failure.until

    def explain(self, key: bytes, now: float) -> str:
        """Return why no client enters the stream now, or an empty string.

        It names the error alone: its message may quote an event of a collection that the client
        may not read.
        """
        failure = self._failures.get(_name(key))
        if failure is None or now >= failure.until:
            return ""
        seconds = ceil(failure.until - now)
        return f"the shared stream failed and is not read for {seconds} s: {failure.code_name}"


def _name(key: bytes) -> bytes:
    """Return a short name for a key, which may be as large as a request."""
    return blake2b(key, digest_size=16).digest()
