"""Resume tokens: decoding, comparing, making high water marks (docs/protocol.md, section 3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from bson.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """A decoded resume token.

    ``data`` is the sort key: the ``_data`` hex as bytes; ``raw`` the token's BSON document.
    ``token_type`` is 0 for a high water mark and 128 for an event.
    """

    cluster_time: Timestamp
    version: int
    token_type: int
    txn_op_index: int
    from_invalidate: bool
    uuid: UUID | None
    event_identifier: bytes
    fragment_num: int | None
    data: bytes
    raw: bytes

    @property
    def is_high_water_mark(self) -> bool:
        """Whether no event can carry this token."""
        raise NotImplementedError

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Decode the document that a client sent; raises mongos's CommandError if it is bad."""
        raise NotImplementedError


def high_water_mark(time: Timestamp, version: int) -> ResumeToken:
    """Return the token that sorts before every event of ``time`` and after all earlier ones."""
    raise NotImplementedError


def cluster_time_of(key: bytes) -> Timestamp:
    """Return the cluster time that a sort key begins with."""
    return Timestamp(int(key[2:10], 16), int(key[10:18], 16))
