"""Views: what one client reads of a merged stream, all of it or a part.

A part has the events of a namespace that pass a filter. A collection's part has the events of its
database's stream that name the collection, and a database's part has those of the cluster's. Only
the end differs: a collection's stream ends after a drop or a rename, a database's after
dropDatabase, with an ``invalidate`` that the wider stream does not have
(docs/sharing.md#streams-read-as-parts-of-a-wider-one).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import bson

from router.filters.index import FilterIndex
from router.filters.stream_filter import StreamFilter
from router.stream.merge.event_log import EventLog
from router.stream.merge.merged_stream import MergedStream
from shard_client.bson.resume_token import (
    TIME_DIGITS,
    ResumeToken,
    cluster_time_of,
    is_high_water_mark,
    key_of_invalidate,
    version_of,
)
from shard_client.errors import CommandError, ErrorCode, ProtocolError
from shard_client.remote_cursor.cursor_reply import KeyedToken, event_key, token_of
from shard_client.wire.documents import decode

RENAME: Final = b"rename"
_END_A_COLLECTION: Final = frozenset({b"drop", RENAME, b"dropDatabase"})
_END_A_DATABASE: Final = frozenset({b"dropDatabase"})
"""The operations after which a stream of a namespace ends (docs/protocol.md#events)."""


class Namespace(NamedTuple):
    """A collection, or a database if ``collection`` is None."""

    database: bytes
    collection: bytes | None


def invalidate_after(event: bytes) -> bytes:
    """Return the invalidate that follows an event which ends a stream (docs/protocol.md#events).

    Raises ValueError if the event is malformed.
    """
    try:
        token, fields = decode(token_of(event)), decode(event)
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    data = key_of_invalidate(str(token["_data"]).encode("ascii")).decode("ascii")
    invalidate: dict[str, Any] = {"_id": {**token, "_data": data}, "operationType": "invalidate"}
    for name in ("clusterTime", "wallTime"):
        if name in fields:
            invalidate[name] = fields[name]
    return bson.encode(invalidate)


_TIME_AND_VERSION: Final = TIME_DIGITS + 4
"""Length of the part of a sort key that holds the cluster time and the version."""


class PartialView:
    """The events of a merged stream that belong to a namespace and pass a filter.

    It is readable like the merged stream of that namespace and filter, with its invalidate and its
    end. It releases no events of the merged stream: a ``FanOut`` fills its ``log`` from its
    ``position``. Once it has a ``failure`` it gets no events any more, and has no watermark either.

    While a reader waits, ``on_events`` is called when the view has got events, has ended or has
    failed, and ``waited_for`` is whether the reader waits for more of them.
    """

    def __init__(
        self,
        position: "LogPosition",
        incarnation: "Incarnation",
        stream_filter: StreamFilter,
        floor: bytes,
    ) -> None:
        self.stream = position.stream
        self.log = EventLog(floor)
        self.position = position
        self.incarnation = incarnation
        self.filter = stream_filter
        self.failure: CommandError | None = None
        """Why the view gets no further events, although the merged stream continues."""
        self.on_events: Callable[[], None] | None = None
        self.waited_for = False

    def release(self) -> bool:
        """Return False: only a ``FanOut`` appends events."""
        return False

    @property
    def high_water_mark(self) -> KeyedToken | None:
        """The high water mark of a client that has read everything, or None.

        It is never the end of a wider stream.
        """
        incarnation = self.incarnation
        if self.failure is not None or self.wider_stream_ended:
            return None
        if incarnation.end is not None:
            return incarnation.end if incarnation.ended else None
        return self.position.high_water_mark

    @property
    def low_watermark(self) -> bytes:
        """The sort key up to which all events are in the log; b"" after a failure."""
        if self.failure is not None:
            return b""
        incarnation = self.incarnation
        if incarnation.ended and incarnation.end is not None:
            return incarnation.end.key
        return self.position.low_watermark

    @property
    def error(self) -> CommandError | None:
        """The error that ended the view or the merged stream, or the wider stream's end."""
        if self.failure is not None or self.incarnation.ended:
            return self.failure
        if self.wider_stream_ended:
            return CommandError(ErrorCode.QueryPlanKilled, "the wider change stream has ended")
        return self.position.error

    @property
    def ended(self) -> bool:
        """Whether the stream has ended with its own invalidate and nothing is left to append."""
        if self.failure is not None:
            return False
        incarnation = self.incarnation
        return incarnation.ended or (incarnation.namespace is None and self.position.ended)

    @property
    def wider_stream_ended(self) -> bool:
        """Whether the wider stream has ended with an invalidate of its own, but not this one."""
        incarnation = self.incarnation
        return not (incarnation.namespace is None or incarnation.ended) and self.position.ended


View = MergedStream | PartialView
"""What a client reads: all events of a merged stream, from the stream's own log, or a part."""


class Incarnation:
    """One life of a namespace: its events up to the invalidate, and the views that end with it.

    ``namespace`` None means all events: such views end with the merged stream. ``end`` is the sort
    key and the token of the invalidate once its cause has arrived. On several shards a collection
    is dropped by an event each, with equal or different tokens: all events up to the first
    invalidate belong to the incarnation, and all invalidates with its token. Once ``ended`` it
    takes no events. Views are found by the identities of their filters, and these by the ``index``;
    views without a filter have the identity b"", and are not in the index.
    """

    def __init__(self, namespace: Namespace | None) -> None:
        self.namespace = namespace
        self.index: FilterIndex[bytes] = FilterIndex()
        self.by_identity: dict[bytes, list[PartialView]] = {}
        """The views by the identity of their filter; none of the lists is empty."""
        self.end: KeyedToken | None = None
        self.ended = False
        self.of_database = namespace is not None and namespace.collection is None
        self._ending_operations = _END_A_DATABASE if self.of_database else _END_A_COLLECTION
        self._events: list[bytes] = []
        self._invalidates: list[bytes] = []

    def __iter__(self) -> Iterator[PartialView]:
        """All views."""
        return chain.from_iterable(self.by_identity.values())

    def add(self, view: PartialView) -> None:
        """Add a view, which belongs to this incarnation from now on."""
        view.incarnation = self
        identity = view.filter.identity
        if identity not in self.by_identity:
            self.by_identity[identity] = []
            if identity:
                self.index.add(identity, view.filter)
        self.by_identity[identity].append(view)

    def remove(self, view: PartialView) -> None:
        """Remove a view, if it is there."""
        identity = view.filter.identity
        views = self.by_identity.get(identity, [])
        if view in views:
            views.remove(view)
            if not views:
                del self.by_identity[identity]
                self.index.remove(identity)

    def take(self, event: bytes, operation: bytes) -> None:
        """Take the next event that belongs to the namespace; ``taken`` returns it."""
        if self.end is not None:
            self.advance_to(event_key(event))
        if self.ended:
            return
        self._events.append(event)
        if operation in self._ending_operations:
            invalidate = invalidate_after(event)
            end = KeyedToken.of(token_of(invalidate))
            if self.end is None:
                self.end = end
            if end.key == self.end.key:
                self._invalidates.append(invalidate)

    def advance_to(self, key: bytes) -> None:
        """End if all events up to the sort key ``key`` have been taken, and ``end`` is among them.

        An event with the invalidate's own key does not occur in the wider stream.
        """
        if self.end is not None and key >= self.end.key and not self.ended:
            self._events += self._invalidates
            self.ended = True

    def taken(self) -> list[bytes]:
        """Return the events taken since the last call."""
        events, self._events = self._events, []
        return events


class LogPosition:
    """A position in the log of a merged stream, and the views that have all events before it.

    ``number`` is that of the next event.
    """

    def __init__(self, stream: MergedStream, number: int) -> None:
        self.stream = stream
        self.number = number
        self.incarnations: dict[Namespace | None, list[Incarnation]] = {}
        """The views by namespace, None for those of all events; none of the lists is empty."""
        self.databases = 0
        """The number of the incarnations that are databases'."""
        self.ending: dict[Incarnation, None] = {}
        """The incarnations whose end has arrived, but not the events that may come before it."""
        self._last = b""
        self._mark: KeyedToken | None = None

    def __iter__(self) -> Iterator[PartialView]:
        """All views."""
        for incarnation in chain.from_iterable(self.incarnations.values()):
            yield from incarnation

    def __bool__(self) -> bool:
        """Whether there are views."""
        return bool(self.incarnations)

    @property
    def whole(self) -> Incarnation | None:
        """The views of all events, if there are any."""
        return self.incarnations.get(None, [None])[0]

    def incarnation_of(self, namespace: Namespace | None) -> Incarnation:
        """Return the incarnation that a new view of ``namespace`` belongs to at this position."""
        for incarnation in self.incarnations.get(namespace, ()):
            if incarnation.end is None:
                return incarnation
        incarnation = Incarnation(namespace)
        self._add(incarnation)
        return incarnation

    def remove(self, incarnation: Incarnation) -> None:
        """Stop filling an incarnation, which has ended or has no views any more."""
        self.ending.pop(incarnation, None)
        incarnations = self.incarnations.get(incarnation.namespace, [])
        if incarnation in incarnations:
            incarnations.remove(incarnation)
            self.databases -= incarnation.of_database
            if not incarnations:
                del self.incarnations[incarnation.namespace]

    def absorb(self, other: "LogPosition") -> None:
        """Take over the views of an equal position."""
        for view in other:
            view.position = self
        self.ending |= other.ending
        for incarnation in chain.from_iterable(other.incarnations.values()):
            if incarnation.end is not None:
                self._add(incarnation)
                continue
            kept = self.incarnation_of(incarnation.namespace)
            for view in incarnation:
                kept.add(view)

    def _add(self, incarnation: Incarnation) -> None:
        self.incarnations.setdefault(incarnation.namespace, []).append(incarnation)
        self.databases += incarnation.of_database

    def advance(self, events: Sequence[bytes]) -> None:
        """Move beyond the next ``events``."""
        self.number += len(events)
        self._last = event_key(events[-1])

    @property
    def behind(self) -> bool:
        """Whether the log has events that its views do not have."""
        return self.number < self.stream.log.end

    @property
    def _done(self) -> bool:
        return not (self.behind or self.stream.merger.ready)

    @property
    def error(self) -> CommandError | None:
        """The error of the merged stream, once its views have all events before it."""
        return self.stream.error if self._done else None

    @property
    def ended(self) -> bool:
        """Whether the merged stream has ended and the views have all its events."""
        return self._done and self.stream.ended

    @property
    def low_watermark(self) -> bytes:
        """The sort key up to which its views have all events, or b""."""
        return self.stream.merger.low_watermark if self._done else self._last

    @property
    def high_water_mark(self) -> KeyedToken | None:
        """The high water mark of a view whose events have all been read.

        It is never an event's token, because a filter may not let that event through: then no
        stream with this filter could resume after it. The mark before the event's cluster time
        takes its place, except at an invalidate, which ends every stream.
        """
        if not self._done:
            return self._mark_before(self._last) if self._last else None
        mark = self.stream.merger.high_water_mark
        if mark is None or self.stream.ended or is_high_water_mark(mark.key):
            return mark
        return self._mark_before(mark.key)

    def _mark_before(self, key: bytes) -> KeyedToken | None:
        """Return the high water mark that sorts before every event of the key's cluster time."""
        version = version_of(key)
        if version is None:
            return None
        known = self._mark
        if known is None or known.key[:_TIME_AND_VERSION] != key[:_TIME_AND_VERSION]:
            token: ResumeToken = ResumeToken.high_water_mark(cluster_time_of(key), version)
            known = self._mark = KeyedToken(token.data, token.raw)
        return known
