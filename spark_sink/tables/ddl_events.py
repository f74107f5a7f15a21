"""DDL events, and the collections that a table must read again because of them.

A job must read a collection again if its documents came without events. A rename brings documents
that the stream may never have shown: its source was outside of the scope, or was a copy that
`convertToCapped` made without events. A drop may belong to `movePrimary`, which copies a collection
to another shard without events and then drops the first copy. So a collection is read again after
its name was dropped, or was given to another collection. The rule needs only the events of a batch
and the state before it, so a batch that is repeated decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import bson

from shard_client.bson.resume_token import high_water_mark, next_tick
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.snapshot.selections import Namespace, ScopeGain
from spark_sink.snapshot.unread import CollectionTokens

DDL_TYPES = ("drop", "dropDatabase", "rename", SNAPSHOT_END)
"""The operation types that change many rows."""


@dataclass(frozen=True, order=True)
class DdlEvent:
    """A DDL event or the end of a snapshot, which affects rows with smaller tokens.

    `target` is the namespace that a rename gives to a collection. `collections` are those that a
    snapshot has read, by database and name, None for all; `request` is the id of its request, and
    `read_until` is a token after all events whose results it may have read.
    """

    token: str
    kind: str
    database: str | None = None
    collection: str | None = None
    target: Namespace | None = None
    collections: tuple[Namespace, ...] | None = field(default=None, compare=False)
    request: str = ""
    read_until: str = ""

    def result(self, database: str, collection: str) -> Namespace | None:
        """Return the new namespace of the rows of a namespace; None if the rows are removed."""
        if self.kind == SNAPSHOT_END:
            # The snapshot would have read the document again, had it been there.
            return None if self.has_read((database, collection)) else (database, collection)
        if self.kind == "dropDatabase":
            return None if database == self.database else (database, collection)
        if (database, collection) == (self.database, self.collection):
            return self.target
        return None if (database, collection) == self.target else (database, collection)

    def has_read(self, part: Namespace | ScopeGain) -> bool:
        """Return whether a snapshot has read a collection, or all that a scope gains."""
        if isinstance(part, ScopeGain) and self.collections is not None:
            return part.id == self.request
        return self.collections is None or part in self.collections

    @property
    def prefixes(self) -> list[str]:
        """Prefixes of the places (`places`) of all rows that this event can affect."""
        if self.kind == SNAPSHOT_END:
            if self.collections is None:
                return [""]
            return [f"{database}\0{name}\0" for database, name in self.collections]
        if self.kind == "dropDatabase":
            return [f"{self.database}\0"]
        names = (self.database, self.collection), self.target
        return ["\0".join((*map(str, name), "")) for name in names if name is not None]


def ddl_event_of(event: bytes) -> DdlEvent:
    """Return the DDL event in an event's BSON."""
    document = bson.decode(event)
    kind, token = document["operationType"], document["_id"]["_data"].upper()
    if kind == SNAPSHOT_END:
        token = high_water_mark(next_tick(document["clusterTime"]))
        names = document.get("collections")
        read = None if names is None else tuple(sorted((n["db"], n["coll"]) for n in names))
        read_until = high_water_mark(next_tick(document["readUntil"]))
        request = str(document.get("requested") or "")
        return DdlEvent(token, kind, collections=read, request=request, read_until=read_until)
    ns, to = document.get("ns") or {}, document.get("to")
    target = (to["db"], to["coll"]) if to else None
    return DdlEvent(token, kind, ns.get("db"), ns.get("coll"), target)


def unread_after(
    unread: CollectionTokens, events: Iterable[DdlEvent], in_scope: Callable[[str, str], bool]
) -> dict[Namespace | ScopeGain, str]:
    """Return the collections in scope that are unread after events, which are sorted by token.

    The end of a snapshot removes the collections that the snapshot has read after their token.
    """
    remaining = dict(unread)
    for event in events:
        here = (event.database or "", event.collection or "")
        if event.kind == SNAPSHOT_END:
            before = [name for name, token in remaining.items() if token < event.token]
            ended = [name for name in before if event.has_read(name)]
        elif event.kind == "dropDatabase":
            names = (name for name in remaining if not isinstance(name, ScopeGain))
            ended = [name for name in names if name[0] == event.database]
        else:
            ended = [here]
        for name in ended:
            remaining.pop(name, None)
        if event.kind in ("drop", "rename"):
            remaining[event.target or here] = event.token
    return {
        part: token
        for part, token in remaining.items()
        if isinstance(part, ScopeGain) or in_scope(*part)
    }


def renamed_by(events: Iterable[DdlEvent]) -> dict[Namespace, str]:
    """Return the names that events, sorted by token, give to collections, and their tokens."""
    return {event.target: event.token for event in events if event.target is not None}


@dataclass(frozen=True)
class TableScope:
    """The collections whose documents a table must have.

    Args:
        contains: whether a collection, by database and name, is one of them.
        unread: those that the table lacked before the batch, or that the scope gains with it.
    """

    contains: Callable[[str, str], bool]
    unread: CollectionTokens = field(default_factory=dict)
