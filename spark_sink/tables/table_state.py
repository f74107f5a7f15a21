"""What a version of a current table knows beside its rows: where it is in the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.events.positions import high_water_mark, time_in
from spark_sink.tables.ddl_events import collections_of
from spark_sink.tables.key_ranges import KeyRanges
from spark_sink.tables.unread import Unread, unread_document, unread_in


@dataclass(frozen=True)
class TableState:
    """The form of a table, and its position, which the metadata of each commit contain.

    Args:
        ranges: the ranges of keys, which are the partitions.
        keys: the fields that identify a document.
        through: the token of the last applied event.
        complete_from: the token from which on the table has every document that an update changes.
        complete_in: the same for single namespaces, if a later snapshot has read them.
        unread: the collections that must be read again, with the token since which.
    """

    keys: tuple[str, ...]
    ranges: KeyRanges = field(default_factory=KeyRanges)
    through: str = ""
    complete_from: str = ""
    complete_in: Mapping[str, str] = field(default_factory=dict)
    unread: Unread = field(default_factory=dict)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TableState:
        """Return the state that `to_document` wrote."""
        return cls(
            tuple(document["keys"]),
            KeyRanges.from_document(document["ranges"]),
            document["through"],
            document["completeFrom"],
            document["completeIn"],
            unread_in(document),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the state for a commit, with the cluster time of `through` for readers."""
        found: dict[str, Any] = {
            "keys": list(self.keys),
            "ranges": self.ranges.to_document(),
            "through": self.through,
            "completeFrom": self.complete_from,
            "completeIn": dict(self.complete_in),
        }
        if self.unread:
            found["unread"] = unread_document(self.unread)
        if self.through:
            seconds = time_in(self.through).time
            found["clusterTime"] = datetime.fromtimestamp(seconds, UTC).isoformat()
        return found

    def after_event(self, event: Mapping[str, Any]) -> TableState:
        """Return the state after a DDL event, which may be the end of a snapshot."""
        if event["operationType"] != "snapshotEnd":
            return self
        until: Timestamp = event["readUntil"]
        token = high_water_mark(Timestamp(until.time, until.inc + 1))
        collections = collections_of(event)
        if not collections:
            return replace(self, complete_from=max(self.complete_from, token))
        later = {f"{database}.{name}": token for database, name in collections}
        return replace(self, complete_in={**self.complete_in, **later})
