"""What a change stream needs of the member that it runs on."""

from collections.abc import Mapping
from typing import Any, Protocol

from bson.binary import Binary
from bson.timestamp import Timestamp

from embedded.oplog import Oplog


class StreamHost(Protocol):
    """A member with an oplog, and with documents to look up.

    A change stream only reads. Collections are named by UUID, since a name may have been dropped
    and taken again since an event happened.
    """

    @property
    def token_version(self) -> int:
        """1: behave as 6.0; 2: as 7.0 (docs/protocol.md, section 3)."""

    @property
    def oplog(self) -> Oplog:
        """The member's oplog."""

    def find_one(
        self, ns: str, uuid: Binary, document_key: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the present document of that key; None when it, or the collection, is gone."""

    def pre_image(self, uuid: Binary, ts: Timestamp, index: int) -> dict[str, Any] | None:
        """Return the document before a change, when the collection keeps such images.

        ``ts`` is the oplog entry's, ``index`` the operation's place in its applyOps (else 0).
        """

    def is_view(self, ns: str) -> bool:
        """Whether ``ns`` names a view."""
