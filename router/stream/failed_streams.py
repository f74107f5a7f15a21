"""Shared streams that have failed, and are not entered for a while (docs/sharing.md); no I/O."""

from dataclasses import dataclass
from math import ceil
from typing import Final

from shard_client.errors import RESUMABLE_LABEL, CommandError

FIRST_PAUSE: Final = 10.0
"""Seconds for which clients avoid a shared stream after its first failure."""

LONGEST_PAUSE: Final = 3600.0
"""Upper bound of the pause, which doubles with each failure, in seconds. If none follows for so
long after the end of a pause, the next pause is the first again."""

MOST_FAILED: Final = 1000
"""Maximum of failed streams that are remembered; the latest to fail are kept."""


@dataclass(slots=True)
class _Failure:
    code_name: str
    at: float
    until: float


class FailedStreams:
    """Remembers for a while which shared streams have failed.

    An event that most of its clients would not receive may end a shared stream, and the next such
    event would end it again. Clients read streams of their own meanwhile, and do not enter it for a
    time that doubles with each failure, from ``FIRST_PAUSE`` to ``LONGEST_PAUSE``. A resumable
    error, such as a shard's outage, does not double it: it says nothing about events. Streams are
    named by their keys (``Source.key``); all times are on the loop's clock.
    """

    def __init__(self) -> None:
        self._failures: dict[bytes, _Failure] = {}

    def add(self, key: bytes, error: CommandError, entered: float, now: float) -> bool:
        """Record that a stream has failed for a reader that entered it at the time ``entered``.

        Readers that entered it before its last failure report that failure once more. Return
        whether this one is the first to report it.
        """
        last = self._failures.pop(key, None)
        first = True
        if last is None or now - last.until > LONGEST_PAUSE:
            last = _Failure(error.code_name, now, now + FIRST_PAUSE)
        elif entered > last.at:
            pause = (last.until - last.at) * (1 if RESUMABLE_LABEL in error.labels else 2)
            last = _Failure(error.code_name, now, now + min(pause, LONGEST_PAUSE))
        else:
            first = False
        self._failures[key] = last
        if len(self._failures) > MOST_FAILED:
            del self._failures[next(iter(self._failures))]
        return first

    def why_avoided(self, key: bytes, now: float) -> str:
        """Return why no client enters the stream now, or an empty string.

        It names the error alone: its message may quote an event of a collection that the client
        may not read.
        """
        failure = self._failures.get(key)
        if failure is None or now >= failure.until:
            return ""
        seconds = ceil(failure.until - now)
        return f"the shared stream failed and is not read for {seconds} s: {failure.code_name}"
