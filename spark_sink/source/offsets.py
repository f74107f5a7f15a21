"""The offsets of a stream, which Spark keeps in the checkpoint.

An offset holds a position and the scope of the stream. A query refuses a checkpoint of another
scope, because continuing from it would leave out the events that only the new scope has. A job
reads the collections that its scope gains; an offset then has the rule that selects them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bson.timestamp import Timestamp

from spark_sink.dataclass_json import NewerVersionError, from_document, to_document
from spark_sink.errors import StreamError
from spark_sink.events.positions import EventRange, Position, Token, after, time_of
from spark_sink.options.scope import Scope
from spark_sink.snapshot.queue import SnapshotQueue
from spark_sink.snapshot.unread import CollectionTokens


@dataclass(frozen=True)
class Offset:
    """Where a batch ends, and what else the next batch needs.

    Args:
        scope: of the stream, None if it is not known.
        since: the cluster time from which on the events of the scope were read without a gap; None
            for the query's beginning.
        events: about how many events the batch that ends here has in the stream, if known; none if
            it only moves the position.
        quiet_until: a cluster time before which that batch has no events; of a source's latest
            offset, before which no event follows the batch.
        heartbeat: the cluster time of the last heartbeat.
        sought: the position from which on a job leaves out the events up to this one.
    """

    position: Position
    scope: Scope | None = None
    since: Timestamp | None = None
    events: int | None = None
    quiet_until: Timestamp | None = None
    heartbeat: Timestamp | None = None
    snapshots: SnapshotQueue = field(default_factory=SnapshotQueue)
    sought: Position | None = None

    @classmethod
    def of(cls, offset: Mapping[str, Any], *, in_table: bool = False) -> Offset:
        """Return the offset of a `document`, of a checkpoint, or of a table's state (`in_table`).

        Raises StreamError for one of another source, or of a newer version of this one.
        """
        holder, remedy = "the checkpoint", "use a separate checkpointLocation"
        if in_table:
            holder, remedy = "the state of a table", "restore the table from a backup"
        try:
            return from_document(cls, offset)
        except NewerVersionError as error:
            raise StreamError(f"{holder} cannot be continued: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            text = f"{holder} has no offset of this source: {remedy}"
            raise StreamError(text, error) from None

    @property
    def document(self) -> dict[str, Any]:
        """The offset for Spark: a dict that json.dumps accepts."""
        document: dict[str, Any] = to_document(self)
        return document

    def moved(self, position: Position, **changed: Any) -> Offset:
        """Return the end of the next batch; it keeps this offset's scope and `since`."""
        return Offset(position, self.scope, self.since, **changed)

    @property
    def time(self) -> Timestamp | None:
        """The cluster time of the position; None while the query starts from now."""
        return time_of(self.position)

    @property
    def cut(self) -> Timestamp | None:
        """The earliest cluster time of later events; None while the query starts from now."""
        if isinstance(self.position, Token) and not self.position.is_high_water_mark:
            return after(self.position.cluster_time).time
        return self.time

    @property
    def is_in_snapshot(self) -> bool:
        """Whether an initial snapshot has begun and not ended."""
        return self.snapshots.initial_plan is not None

    def events_after(self, before: Offset) -> EventRange:
        """Return the events between two offsets, of which this one is the end."""
        return EventRange(before.position, self.position, self.events, self.quiet_until)

    @property
    def unread_at_end(self) -> CollectionTokens:
        """The collections that the job is about to read, because it gained or must reread them.

        Each has the token from which the table lacks documents of it.
        """
        return {name: at for each in self.unread_by_request.values() for name, at in each.items()}

    @property
    def unread_by_request(self) -> dict[str, CollectionTokens]:
        """The same, by the ids of the requests that read them."""
        snapshots = self.snapshots
        return {each.id: each.unread_tokens(snapshots.required_at) for each in snapshots.requests}

    def require_scope(self, scope: Scope) -> None:
        """Raise StreamError if the offset is of another scope."""
        if self.scope not in (None, scope):
            since = "" if self.time is None else f"{self.time.time},{self.time.inc}"
            raise StreamError(
                f"the checkpoint is of another scope: it was written for {self.scope}, and the "
                f"options request {scope}. Restore the options, or start with a new "
                f"checkpointLocation{since and f' and startAtOperationTime={since}'}"
            )
