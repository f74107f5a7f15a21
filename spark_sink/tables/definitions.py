"""What events of collections and databases do to the rows of a table.

Renames, drops and the end of a snapshot change many rows at once. So each row, and each event, is
looked at with the definitions that follow it in the stream: they say under which namespace it ends
up, or that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import bson
from bson.timestamp import Timestamp

from spark_sink.positions import high_water_mark

DEFINITIONS = ("drop", "dropDatabase", "rename", "snapshotEnd")
"""The operation types that change many rows."""


@dataclass(frozen=True, order=True)
class Definition:
    """One such event.

    token: rows with smaller tokens are concerned; collections: those of a snapshot that has ended,
    by database and name, empty for all.
    """

    token: str
    kind: str
    database: str | None = None
    collection: str | None = None
    to_database: str | None = None
    to_collection: str | None = None
    collections: tuple[tuple[str, str], ...] = ()

    def result(self, database: str, collection: str) -> tuple[str, str] | None:
        """The namespace that rows of a namespace have after this event; None: they are gone."""
        if self.kind == "snapshotEnd":
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


def definition_of(event: bytes) -> Definition:
    """The definition in an event's BSON."""
    document = bson.decode(event)
    kind, token = document["operationType"], document["_id"]["_data"].upper()
    if kind == "snapshotEnd":
        mark: Timestamp = document["clusterTime"]
        token = high_water_mark(Timestamp(mark.time, mark.inc + 1))
    ns, to = document.get("ns") or {}, document.get("to") or {}
    return Definition(
        token,
        kind,
        ns.get("db"),
        ns.get("coll"),
        to.get("db"),
        to.get("coll"),
        collections_of(document),
    )


def collections_of(snapshot_end: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The databases and collections that a snapshot has read as a whole; empty for all."""
    found = snapshot_end.get("collections") or ()
    return tuple(sorted((each["db"], each["coll"]) for each in found))


def place_of(
    token: str, database: str, collection: str, definitions: Iterable[Definition]
) -> tuple[str, str] | None:
    """Where a row with this token is after the definitions, which are sorted; None: gone."""
    place: tuple[str, str] | None = (database, collection)
    for definition in definitions:
        if place is not None and definition.token > token:
            place = definition.result(*place)
    return place
