"""The clients that have closed their cursors and may come back with a resume token."""

from collections import OrderedDict
from contextlib import suppress
from typing import Final

from bson.timestamp import Timestamp

from shard_client.bson.resume_token import cluster_time_of

_MOST: Final = 1000
_REMEMBERED_FOR: Final = 24 * 60 * 60.0


class DepartedClients:
    """The last places of clients that have left: the cluster times from which they may resume.

    A client is known by its address and the namespace it watched; its entry goes when it opens a
    cursor again, after a day, or when more than a thousand others have left since.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[str | None, str], tuple[float, Timestamp]] = OrderedDict()

    def left(self, client: str | None, namespace: str, needs: bytes, now: float) -> None:
        """Record that a cursor has been closed; ``now`` is the loop's time in seconds.

        ``needs`` is the sort key beyond which the client needs all events.
        """
        with suppress(ValueError):  # a damaged token has no place in the oplog
            key, place = (client, namespace), cluster_time_of(needs)
            earlier = self._places.pop(key, None)
            if earlier is not None and now - earlier[0] < _REMEMBERED_FOR:
                place = min(place, earlier[1])
            self._places[key] = (now, place)
            if len(self._places) > _MOST:
                self._places.popitem(last=False)

    def returned(self, client: str | None, namespace: str) -> None:
        """Record that a client has opened a cursor."""
        self._places.pop((client, namespace), None)

    def earliest(self, now: float) -> Timestamp | None:
        """Return the earliest place at the loop's time ``now``; None if there is none."""
        while self._places:
            left, _place = next(iter(self._places.values()))
            if now - left < _REMEMBERED_FOR:
                break
            self._places.popitem(last=False)
        return min((place for _left, place in self._places.values()), default=None)
