"""The state of a version of a current table, which `state_files` writes beside its files.

A job must read a collection again if its documents came without events. A rename brings documents
that the stream may never have shown: its source was outside of the scope, or was a copy that
`convertToCapped` made without events. A drop may belong to `movePrimary`, which copies a collection
to another shard without events and then drops the first copy. So a collection is read again after
its name was dropped, or was given to another collection. The rule needs only the events of a batch
and the state before it, so a batch that is repeated decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import bson

from shard_client.bson.resume_token import cluster_time_of, high_water_mark, next_tick
from spark_sink.events.documents import stored, to_document
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.snapshot.plan import LostDocument
from spark_sink.tables.prepare import SNAPSHOT_END, DdlEvent, collections_of
from spark_sink.tables.staged_changes import ChangeReport

# The most bytes of keys for which lost documents are read one by one: about a thousand documents.
_LOST_BYTES = 50_000

Namespace = tuple[str, str]
Unread = Mapping[Namespace, str]
"""By database and name of a collection, the token after which the table lacks documents of it."""


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


@dataclass(frozen=True)
class TableState:
    """The state of a version of a current table: its keys, and where it is in the stream.

    Args:
        keys: the fields that identify a document.
        through: the token of the last applied event.
        complete_from: the token from which on the table has every document that an update changes.
        complete_in: the same for single namespaces, if a later snapshot has read them.
        unread: the collections that must be read again.
        checksum: of all rows, without the partition column.
        partitions: `partition_digest` of all key ranges, by which a restored version is recognised.
        lost: the documents that must be read again because of the last batch; if there are many,
            their collections are unread instead.
    """

    keys: tuple[str, ...]
    through: str = ""
    complete_from: str = ""
    complete_in: Mapping[str, str] = field(default_factory=dict)
    unread: Unread = field(
        default_factory=dict, metadata=stored(write=unread_document, read=unread_from)
    )
    checksum: Checksum = NO_ROWS
    partitions: int = 0
    lost: tuple[LostDocument, ...] = ()

    def without(self, lost: Iterable[LostDocument]) -> TableState:
        """Return the state of a table that has lost these documents in a batch."""
        namespaces = {each: (each.database, each.collection) for each in lost}
        kept = [each for each, name in namespaces.items() if name not in self.unread]
        if sum(len(each.key) for each in kept) <= _LOST_BYTES:
            return replace(self, lost=tuple(kept))
        since = {namespaces[e]: e.token for e in sorted(kept, key=lambda each: each.token)}
        return replace(self, unread={**self.unread, **since}, lost=())

    @property
    def unread_or_lost(self) -> Unread:
        """The collections that lack documents in the table, and the tokens after which they do."""
        lost = {(each.database, each.collection): each.token for each in self.lost}
        return {**lost, **self.unread}

    @property
    def document(self) -> dict[str, Any]:
        """The state for a commit, with the cluster time of `through` for readers."""
        found: dict[str, Any] = to_document(self)
        if self.through:
            seconds = cluster_time_of(self.through).time
            found["clusterTime"] = datetime.fromtimestamp(seconds, UTC).isoformat()
        return found

    def after(self, read: ChangeReport, ddl_events: Sequence[DdlEvent]) -> TableState:
        """Return the state after what tasks have read, with these DDL events."""
        # A snapshot of some collections ends at a time that the stream may not have reached yet.
        reached = (each.token for each in ddl_events if not each.collections)
        # Later events are beyond `through`, so that one mark stands for those up to there.
        ahead = {name: mark for name, mark in self.complete_in.items() if mark > self.through}
        passed = (mark for mark in self.complete_in.values() if mark <= self.through)
        state = replace(
            self,
            through=max([self.through, read.through, *reached]) or read.streamed,
            complete_from=max([self.complete_from, *passed]),
            complete_in=ahead,
        )
        for event in map(bson.decode, read.ddl):
            if event["operationType"] != SNAPSHOT_END:
                continue
            token = high_water_mark(next_tick(event["readUntil"]))
            collections = collections_of(event)
            later = {f"{database}.{name}": token for database, name in collections}
            if not later:
                state = replace(state, complete_from=max(state.complete_from, token))
            state = replace(state, complete_in={**state.complete_in, **later})
        return state

    def unknown(self, ddl_events: Sequence[DdlEvent]) -> tuple[DdlEvent, ...]:
        """Return the events that the table does not have yet.

        A rename that is applied again would remove the rows that it has renamed.
        """
        return tuple(e for e in ddl_events if e.kind == SNAPSHOT_END or e.token > self.through)
