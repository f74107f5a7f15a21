"""What DDL events and ends of snapshots do to the rows of a table.

They change many rows together. So each row, and each event, is compared with the DDL events that
follow it in the stream: they give its namespace, or remove it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark

SNAPSHOT_END = "snapshotEnd"
DDL_TYPES = ("drop", "dropDatabase", "rename", SNAPSHOT_END)
"""The operation types that change many rows."""


@dataclass(frozen=True, order=True)
class DdlEvent:
    """One such event, which affects rows with smaller tokens.

    `collections` are those of a snapshot that has ended, by database and name, empty for all.
    """

    token: str
    kind: str
    database: str | None = None
    collection: str | None = None
    to_database: str | None = None
    to_collection: str | None = None
    collections: tuple[tuple[str, str], ...] = ()

    def result(self, database: str, collection: str) -> tuple[str, str] | None:
        """Return the namespace that rows of a namespace have after this event; None: removed."""
        if self.kind == SNAPSHOT_END:
            # The snapshot would have read the document again, had it been there.
            read = not self.collections or (database, collection) in self.collections
            return None if read else (database, collection)
        if self.kind == "dropDatabase":
            return None if database == self.database else (database, collection)
        here = (database, collection) == (self.database, self.collection)
        if self.kind == "drop":
            return None if here else (database, collection)
        target = (self.to_database or "", self.to_collection or "")
        if here:
            return target
        return None if (database, collection) == target else (database, collection)

    @property
    def prefixes(self) -> list[str]:
        """Prefixes of the places (`key_ranges`) of all rows that this event can affect."""
        if self.kind == SNAPSHOT_END:
            return [f"{database}\0{name}\0" for database, name in self.collections] or [""]
        if self.kind == "dropDatabase":
            return [f"{self.database}\0"]
        found = [f"{self.database}\0{self.collection}\0"]
        if self.kind == "rename":
            found.append(f"{self.to_database}\0{self.to_collection}\0")
        return found


def ddl_event_of(event: bytes) -> DdlEvent:
    """Return the DDL event in an event's BSON."""
    document = bson.decode(event)
    kind, token = document["operationType"], document["_id"]["_data"].upper()
    if kind == SNAPSHOT_END:
        mark: Timestamp = document["clusterTime"]
        token = high_water_mark(Timestamp(mark.time, mark.inc + 1))
    ns, to = document.get("ns") or {}, document.get("to") or {}
    return DdlEvent(
        token,
        kind,
        ns.get("db"),
        ns.get("coll"),
        to.get("db"),
        to.get("coll"),
        collections_of(document),
    )


def collections_of(snapshot_end: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the databases and collections of a snapshot without a filter; empty for all."""
    found = snapshot_end.get("collections") or ()
    return tuple(sorted((each["db"], each["coll"]) for each in found))


def namespace_after(
    token: str, database: str, collection: str, ddl_events: Iterable[DdlEvent]
) -> tuple[str, str] | None:
    """Return the namespace of a row after the sorted DDL events; None: removed."""
    place: tuple[str, str] | None = (database, collection)
    for ddl_event in ddl_events:
        if place is not None and ddl_event.token > token:
            place = ddl_event.result(*place)
    return place
