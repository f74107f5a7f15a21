"""What a change stream needs of the member that it runs on."""

from typing import Any, Protocol

from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.oplog import Oplog
from embedded.storage.catalog import Catalog


class StreamHost(Protocol):
    """A member with an oplog, and with documents to look up. A change stream only reads.

    ``token_version`` 1 asks for events as 6.0 makes them, 2 as 7.0 (docs/protocol.md, section 3).
    """

    token_version: int
    oplog: Oplog
    catalog: Catalog

    def find_one(
        self, ns: str, uuid: Binary | None, document_key: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return the present document of that key; None when it, or the collection, is gone."""

    def pre_image(
        self, uuid: bytes, ts: Timestamp, apply_ops_index: int = 0
    ) -> dict[str, Any] | None:
        """Return the document before the change logged at ``ts``, where such images are kept."""
