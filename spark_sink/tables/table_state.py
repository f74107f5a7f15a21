"""The state of a version of a table, which `state_files` writes beside its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from shard_client.bson.resume_token import cluster_time_of
from spark_sink.dataclass_json import NewerVersionError, from_document, stored, to_document
from spark_sink.errors import StreamError
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.snapshot.selections import ScopeGain
from spark_sink.snapshot.unread import (
    CollectionTokens,
    LostDocument,
    token_in,
    tokens_document,
    tokens_from,
)
from spark_sink.source.offsets import Offset
from spark_sink.tables.ddl_events import DdlEvent, TableScope, unread_after
from spark_sink.tables.staged_changes import ChangeReport

_TOKENS = stored(write=tokens_document, read=tokens_from)
# The most bytes of keys for which lost documents are read one by one: about a thousand documents.
_LOST_BYTES = 50_000
_CLUSTER_TIME = "clusterTime"
"""The field of a document with the time of `through`, for readers of the commits."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch: the id of its query, its number, and the offset at its end.

    `Batch()`, without an id, stands for no batch: no query has written to the table.

    Args:
        begin: the offset at its beginning; empty for a query's first batch, and if it is unknown.
        verified: what the last verification of the table has found.
        written: by the name of a table to which the job appends, the newest batch that has rows in
            it; a table without that batch is lost, or is an older copy.
    """

    query: str = ""
    number: int = -1
    offset: Mapping[str, Any] = field(default_factory=dict)
    begin: Mapping[str, Any] = field(default_factory=dict)
    verified: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)

    @property
    def end(self) -> Offset | None:
        """The offset at its end; None if it is unknown. Raises StreamError if it is damaged."""
        return Offset.of(self.offset, in_table=True) if self.offset else None

    def wrote(self, name: str) -> Batch:
        """Return this batch, which has rows in the table with that name."""
        return replace(self, written={**self.written, name: self.number})

    def is_same(self, other: Batch) -> bool:
        """Return whether both have the same number and, as far as known, the same events."""
        numbered = (self.query, self.number) == (other.query, other.number)
        begins = self.begin and other.begin and self.begin != other.begin
        return numbered and self.offset == other.offset and not begins

    def may_follow(self, last: Batch) -> bool:
        """Return whether a table whose newest batch is `last` may get this later one.

        It must be of the same query; the next batch must begin where `last` ends, if that is known.
        """
        is_next = self.number == last.number + 1
        begins_there = not (is_next and self.begin) or self.begin == last.offset
        return self.query == last.query and begins_there


@dataclass(frozen=True)
class TableState:
    """The state of a version of a table: its newest batch, and the checksum of its rows.

    That of a current table says further where the table is in the stream, and what it lacks.

    Args:
        keys: the fields that identify a document; none if the table is no current one.
        through: the token of the last applied event.
        complete_from: the token from which on the table has every document that an update changes.
        complete_in: the same for collections that a later snapshot has read.
        unread: the collections that must be read again.
        checksum: of all rows, without the partition column.
        partitions: `partition_digest` of all key ranges, by which a restored version is recognised.
        lost: the documents that must be read again because of the last batch; if there are many,
            their collections are unread instead.
        batch: the newest batch that the table has.
    """

    keys: tuple[str, ...] = ()
    through: str = ""
    complete_from: str = ""
    complete_in: CollectionTokens = field(default_factory=dict, metadata=_TOKENS)
    unread: CollectionTokens = field(default_factory=dict, metadata=_TOKENS)
    checksum: Checksum = NO_ROWS
    partitions: int = 0
    lost: tuple[LostDocument, ...] = ()
    batch: Batch = Batch()

    @classmethod
    def of(cls, document: Mapping[str, Any], address: str) -> TableState:
        """Return the state in a document of the table at an address.

        Raises StreamError if a newer version of this package has written it.
        """
        fields = {name: value for name, value in document.items() if name != _CLUSTER_TIME}
        try:
            return from_document(cls, fields)
        except NewerVersionError as error:
            raise StreamError(f"the table at {address}: {error}") from None

    def with_lost(self, lost: Iterable[LostDocument]) -> TableState:
        """Return the state of a table that has lost these documents in a batch."""
        each_once = dict.fromkeys(lost)
        alone = [one for one in each_once if not token_in(self.unread, *one.namespace)]
        if sum(len(document.key) for document in alone) <= _LOST_BYTES:
            return replace(self, lost=tuple(alone))
        alone.sort(key=lambda document: document.token)
        since: CollectionTokens = {document.namespace: document.token for document in alone}
        return replace(self, unread={**self.unread, **since}, lost=())

    @property
    def unread_or_lost(self) -> CollectionTokens:
        """The collections that lack documents in the table, and the tokens after which they do."""
        lost: CollectionTokens = {document.namespace: document.token for document in self.lost}
        return {**lost, **self.unread}

    @property
    def document(self) -> dict[str, Any]:
        """The state for a commit, with the cluster time of `through` for readers."""
        document: dict[str, Any] = to_document(self)
        if self.through:
            document[_CLUSTER_TIME] = cluster_time_of(self.through).as_datetime().isoformat()
        return document

    def after(
        self, read: ChangeReport, ddl_events: Sequence[DdlEvent], scope: TableScope | None = None
    ) -> TableState:
        """Return the state after what tasks have read, with these DDL events.

        Without a scope no other collections become unread.
        """
        ends = [event for event in ddl_events if event.kind == SNAPSHOT_END]
        # The events after a snapshot of the mode begin at its time, though it may be read later.
        before = [end.token for end in ends if not end.request] or [self.through]
        # A snapshot of some collections ends at a time that the stream may not have reached yet.
        reached = (event.token for event in ddl_events if event.collections is None)
        # Later events are beyond `through`, so that one mark stands for those up to there.
        passed = (mark for mark in self.complete_in.values() if mark <= self.through)
        state = replace(
            self,
            through=max([*before, read.through, *reached]) or read.before_snapshot,
            complete_from=max([self.complete_from, *passed]),
            complete_in={
                name: mark for name, mark in self.complete_in.items() if mark > self.through
            },
        )
        state = reduce(TableState._completed_by, ends, state)
        if scope is None:
            return state
        unread, events = {**self.unread, **scope.unread}, self.not_applied(ddl_events)
        return replace(state, unread=unread_after(unread, events, scope.contains))

    def _completed_by(self, end: DdlEvent) -> TableState:
        """Return the state after the end of a snapshot, which has read whole collections."""
        token, read = end.read_until, end.collections
        gains = (gain for gain in self.unread if isinstance(gain, ScopeGain))
        gained = [gain for gain in gains if gain.id == end.request]
        completed: CollectionTokens = dict.fromkeys(gained or read or (), token)
        return replace(
            self,
            complete_from=max(self.complete_from, token) if read is None else self.complete_from,
            complete_in={**self.complete_in, **completed},
        )

    def not_applied(self, ddl_events: Sequence[DdlEvent]) -> tuple[DdlEvent, ...]:
        """Return the events that the table does not have yet.

        A rename that is applied again would remove the rows that it has renamed.
        """
        return tuple(
            event
            for event in ddl_events
            if event.kind == SNAPSHOT_END or event.token > self.through
        )
