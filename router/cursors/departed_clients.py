"""The clients that have closed their cursors and may come back with a resume token."""

from collections import OrderedDict
from contextlib import suppress
from typing import Final

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import cluster_time_of

_MOST: Final = 1000
_REMEMBERED_FOR: Final = 24 * 60 * 60.0


class DepartedClients:
    """The cluster times from which clients that have left may resume.

    A client is known by its address and the namespace it watched; its entry goes when it opens a
    cursor again, after a day, or when more than a thousand others have left since.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[str | None, str], tuple[float, Timestamp]] = OrderedDict()

    def record_left(self, client: str | None, namespace: str, needs: bytes, now: float) -> None:
        """Record that a cursor has been closed; ``now`` is the loop's time in seconds.

        ``needs`` is the sort key beyond which the client needs all events.
        """
        with suppress(ValueError):  # a damaged token has no place in the oplog
            key, resume_time = (client, namespace), cluster_time_of(needs)
            earlier = self._left.pop(key, None)
            if earlier is not None and now - earlier[0] < _REMEMBERED_FOR:
                resume_time = min(resume_time, earlier[1])
            self._left[key] = (now, resume_time)
            if len(self._left) > _MOST:
                self._left.popitem(last=False)

    def record_back(self, client: str | None, namespace: str) -> None:
        """Record that a client has opened a cursor."""
        self._left.pop((client, namespace), None)

    def earliest(self, now: float) -> Timestamp | None:
        """Return the earliest of these times at the loop's time ``now``; None if there is none."""
        times = (time for at, time in self._left.values() if now - at < _REMEMBERED_FOR)
        return min(times, default=None)
