"""Pre-images: documents as they were before changes, stored for change streams."""

from collections import OrderedDict

from bson.timestamp import Timestamp

from embedded.logical_clock import as_ordinal
from embedded.storage.bson_values import Document

_ImageKey = tuple[bytes, int, int]


class PreImages:
    """Documents before changes, by collection, oplog entry and index in a transaction.

    They live as long as their oplog entries (docs/protocol.md#events).
    """

    def __init__(self) -> None:
        self._images: OrderedDict[_ImageKey, Document] = OrderedDict()

    def keep(self, uuid: bytes, ts: Timestamp, index: int, document: Document) -> None:
        """Store the document before the change of the ``index``-th operation at ``ts``."""
        self._images[bytes(uuid), as_ordinal(ts), index] = document

    def get(self, uuid: bytes, ts: Timestamp, index: int) -> Document | None:
        """Return that document, or None if it is not stored."""
        return self._images.get((bytes(uuid), as_ordinal(ts), index))

    def forget_through(self, ts: Timestamp | None) -> None:
        """Drop the images of entries up to ``ts``, which the oplog has dropped."""
        if ts is None:
            return
        limit = as_ordinal(ts)
        while self._images and next(iter(self._images))[1] <= limit:
            self._images.popitem(last=False)
