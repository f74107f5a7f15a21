"""DDL events, and the collections that a table must read again because of them.

A job must read a collection again if its documents came without events. A rename brings documents
that the stream may never have shown: its source was outside of the scope, or was a copy that
`convertToCapped` made without events. A drop may belong to `movePrimary`, which copies a collection
to another shard without events and then drops the first copy. So a collection is read again after
its name was dropped, or was given to another collection. The rule needs only the events of a batch
and the state before it, so a batch that is repeated decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson

from shard_client.bson.resume_token import high_water_mark, next_tick
from spark_sink.events.header import SNAPSHOT_END

DDL_TYPES = ("drop", "dropDatabase", "rename", SNAPSHOT_END)
"""The operation types that change many rows."""

Namespace = tuple[str, str]
Unread = Mapping[Namespace, str]
"""By database and name of a collection, the token after which the table lacks documents of it."""


@dataclass(frozen=True, order=True)
class DdlEvent:
    """A DDL event or the end of a snapshot, which affects rows with smaller tokens.

    `target` is the namespace that a rename gives to a collection. `collections` are those that a
    snapshot has read, by database and name; empty for all.
    """

    token: str
    kind: str
    database: str | None = None
    collection: str | None = None
    target: Namespace | None = None
    collections: tuple[Namespace, ...] = ()

    def result(self, database: str, collection: str) -> Namespace | None:
        """Return the new namespace of the rows of a namespace; None if the rows are removed."""
        if self.kind == SNAPSHOT_END:
            # The snapshot would have read the document again, had it been there.
            read = not self.collections or (database, collection) in self.collections
            return None if read else (database, collection)
        if self.kind == "dropDatabase":
            return None if database == self.database else (database, collection)
        if (database, collection) == (self.database, self.collection):
            return self.target
        return None if (database, collection) == self.target else (database, collection)

    @property
    def prefixes(self) -> list[str]:
        """Prefixes of the places (`key_ranges`) of all rows that this event can affect."""
        if self.kind == SNAPSHOT_END:
            return [f"{database}\0{name}\0" for database, name in self.collections] or [""]
        if self.kind == "dropDatabase":
            return [f"{self.database}\0"]
        names = (self.database, self.collection), self.target
        return ["\0".join((*map(str, each), "")) for each in names if each is not None]


def ddl_event_of(event: bytes) -> DdlEvent:
    """Return the DDL event in an event's BSON."""
    document = bson.decode(event)
    kind, token = document["operationType"], document["_id"]["_data"].upper()
    if kind == SNAPSHOT_END:
        token = high_water_mark(next_tick(document["clusterTime"]))
    ns, to = document.get("ns") or {}, document.get("to")
    target = (to["db"], to["coll"]) if to else None
    return DdlEvent(token, kind, ns.get("db"), ns.get("coll"), target, collections_of(document))


def collections_of(snapshot_end: Mapping[str, Any]) -> tuple[Namespace, ...]:
    """Return the databases and collections that a snapshot has read; empty for all."""
    found = snapshot_end.get("collections") or ()
    return tuple(sorted((each["db"], each["coll"]) for each in found))


def unread_after(
    unread: Unread, events: Iterable[DdlEvent], in_scope: Callable[[str, str], bool]
) -> dict[Namespace, str]:
    """Return the collections in scope that are unread after events, which are sorted by token.

    The end of a snapshot removes the collections that the snapshot has read after their token.
    """
    found = dict(unread)
    for event in events:
        here = (event.database or "", event.collection or "")
        if event.kind == SNAPSHOT_END:
            ended = [
                each
                for each, token in found.items()
                if token < event.token and (not event.collections or each in event.collections)
            ]
        elif event.kind == "dropDatabase":
            ended = [each for each in found if each[0] == event.database]
        else:
            ended = [here]
        for each in ended:
            found.pop(each, None)
        if event.kind in ("drop", "rename"):
            found[event.target or here] = event.token
    return {name: token for name, token in found.items() if in_scope(*name)}


@dataclass(frozen=True)
class TableScope:
    """The collections whose documents a table must have.

    Args:
        contains: whether a collection, by database and name, is one of them.
        unread: those that the table lacked before the batch.
    """

    contains: Callable[[str, str], bool]
    unread: Unread = field(default_factory=dict)


def unread_names(unread: Unread) -> str:
    """Return the names of the first unread collections, for messages; empty for none."""
    return ", ".join(sorted(map(".".join, unread))[:20])


def unread_document(unread: Unread) -> list[list[str]]:
    """Return unread collections as a part of a state's document."""
    return [[*name, token] for name, token in sorted(unread.items())]


def unread_from(document: Sequence[Sequence[str]]) -> Unread:
    """Return what `unread_document` wrote."""
    return {(database, name): token for database, name, token in document}
