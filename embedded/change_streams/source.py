"""What a change stream reads: the part of a member that it sees."""

from typing import Any, Protocol

from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.images import Images
from embedded.oplog import Oplog
from embedded.server_version import ServerVersion
from embedded.storage.catalog import Catalog


class StreamSource(Protocol):
    """A member's oplog, catalog, documents and images."""

    server_version: ServerVersion
    oplog: Oplog
    catalog: Catalog

    def find_one(
        self, ns: str, uuid: Binary | None, document_key: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the current document with this key; None if it or the collection is gone."""

    def images(self, uuid: bytes, ts: Timestamp, apply_ops_index: int = 0) -> Images | None:
        """Return the document before and after the change logged at ``ts``, None if not stored."""
