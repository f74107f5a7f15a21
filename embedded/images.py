"""Documents as they were before and after changes, stored for change streams."""

from collections import OrderedDict
from typing import NamedTuple

from bson.timestamp import Timestamp

from embedded.logical_clock import as_ordinal
from embedded.storage.bson_values import Document


class Images(NamedTuple):
    """A document before a change, and after it (None if the change deleted it)."""

    before: Document
    after: Document | None


class StoredImages:
    """Images by collection, oplog entry and index in a transaction.

    They live as long as their oplog entries (docs/protocol.md#events).
    """

    def __init__(self) -> None:
        self._images: OrderedDict[tuple[bytes, int, int], Images] = OrderedDict()

    def keep(self, uuid: bytes, ts: Timestamp, index: int, images: Images) -> None:
        """Store the images of the ``index``-th operation at ``ts``."""
        self._images[bytes(uuid), as_ordinal(ts), index] = images

    def get(self, uuid: bytes, ts: Timestamp, index: int) -> Images | None:
        """Return those images, or None if they are not stored."""
        return self._images.get((bytes(uuid), as_ordinal(ts), index))

    def forget_through(self, ts: Timestamp | None) -> None:
        """Drop the images of entries up to ``ts``, which the oplog has dropped."""
        if ts is None:
            return
        limit = as_ordinal(ts)
        while self._images and next(iter(self._images))[1] <= limit:
            self._images.popitem(last=False)
