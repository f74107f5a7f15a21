"""Views: what one client reads of a merged stream that serves others as well.

A view has the events of a namespace that pass a filter. A collection's view has the events of its
database's stream that name the collection, and a database's view has those of the cluster's. Only
the end differs: a collection's stream ends after a drop or a rename, a database's after
dropDatabase, with an ``invalidate`` that the wider stream does not have
(docs/sharing.md#streams-read-as-parts-of-a-wider-one).
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

from router.change_stream.merged_stream import MergedStream
from router.change_stream.namespace import Namespace, invalidate_after
from router.change_stream.remotes import ShardSpan
from router.change_stream.resume_token import (
    TIME_DIGITS,
    ResumeToken,
    cluster_time_of,
    event_key,
    high_water_mark,
    is_high_water_mark,
    token_of,
    version_of,
)
from router.change_stream.traffic import Traffic
from router.filters.index import FilterIndex
from router.filters.stream_filter import StreamFilter
from router.merge.merged_log import MergedLog
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

_TIME_AND_VERSION: Final = TIME_DIGITS + 4
"""Length of the part of a sort key that holds the cluster time and the version."""


class View:
    """The events of a merged stream that belong to a namespace and pass a filter.

    It is readable like the merged stream of that namespace and filter, with its invalidate and its
    end. It releases no events of the merged stream: a ``FanOut`` fills its ``log``, by the scan
    that it belongs to. ``on_events`` is called when events have been appended or the view has
    ended or failed; ``waited_for`` is whether its reader waits for more of them. Once it is
    ``closed`` it gets no events any more, and makes no promises either.
    """

    __slots__ = (
        "closed", "failure", "filter", "incarnation", "log", "on_events", "scan", "waited_for",
    )  # fmt: skip

    def __init__(
        self, scan: "Scan", incarnation: "Incarnation", stream_filter: StreamFilter, floor: bytes
    ) -> None:
        self.scan = scan
        self.incarnation = incarnation
        self.filter = stream_filter
        self.log = MergedLog(floor, event_key, scan.stream.log.join_bytes)
        self.on_events: Callable[[], None] | None = None
        self.waited_for = False
        self.closed = False
        self.failure: CommandError | None = None
        """Why the view gets no further events, although the merged stream goes on."""

    def release(self) -> bool:
        """Return False: the fan-out appends events."""
        return False

    @property
    def _silent(self) -> bool:
        """Whether it makes no promises."""
        return self.closed or self.failure is not None

    @property
    def mark(self) -> tuple[bytes, bytes] | None:
        """Sort key and token of the mark for a client that has read everything, or None.

        The end of a wider stream is never a mark.
        """
        if self._silent:
            return None
        incarnation = self.incarnation
        if incarnation.end is not None:
            return incarnation.end if incarnation.ended else None
        return None if self.overtaken else self.scan.mark

    @property
    def gate(self) -> bytes | None:
        """The sort key up to which all events are in the log."""
        if self._silent:
            return None
        incarnation = self.incarnation
        if incarnation.ended and incarnation.end is not None:
            return incarnation.end[0]
        return self.scan.gate

    @property
    def error(self) -> CommandError | None:
        """The error that ended the view or the merged stream, or the wider stream's end."""
        if self.closed or self.incarnation.ended:
            return None
        if self.failure is not None:
            return self.failure
        if self.overtaken:
            return CommandError(ErrorCode.QueryPlanKilled, "the wider change stream has ended")
        return self.scan.error

    @property
    def refused(self) -> bool:
        """Whether the error occurred at the opening."""
        return self.scan.stream.refused

    @property
    def ended(self) -> bool:
        """Whether the stream has ended with its own invalidate and nothing is left to append."""
        if self._silent:
            return False
        return self.incarnation.ended or (self.incarnation.is_whole and self.scan.ended)

    @property
    def ending(self) -> bool:
        """Whether the event that ends the namespace has arrived."""
        return self.incarnation.end is not None

    @property
    def overtaken(self) -> bool:
        """Whether the wider stream has ended with an invalidate of its own, but not this one."""
        incarnation = self.incarnation
        return not (incarnation.is_whole or incarnation.ended) and self.scan.ended

    def spans_beyond(self, key: bytes) -> frozenset[ShardSpan]:
        """Return the spans, removed shards included, that may have events beyond a sort key."""
        return self.scan.stream.spans_beyond(key)

    @property
    def swallowed(self) -> list[bytes]:
        """Sort keys of the invalidates that the stream has swallowed."""
        return self.scan.stream.swallowed


class Views:
    """Views by the identities of their filters, which are found through an index.

    Views without a filter have the identity b"" and are not in the index.
    """

    def __init__(self) -> None:
        self.index: FilterIndex[bytes] = FilterIndex()
        self.by_identity: dict[bytes, list[View]] = {}
        """The views by the identity of their filter; none of the lists is empty."""

    def __iter__(self) -> Iterator[View]:
        """All views."""
        return chain.from_iterable(self.by_identity.values())

    def __bool__(self) -> bool:
        """Whether there are views."""
        return bool(self.by_identity)

    def add(self, view: View) -> None:
        """Add a view."""
        identity = view.filter.identity
        if identity not in self.by_identity:
            self.by_identity[identity] = []
            if identity:
                self.index.add(identity, view.filter)
        self.by_identity[identity].append(view)

    def remove(self, view: View) -> None:
        """Remove a view, if it is there."""
        identity = view.filter.identity
        views = self.by_identity.get(identity, [])
        if view in views:
            views.remove(view)
            if not views:
                del self.by_identity[identity]
                self.index.remove(identity)


class Incarnation:
    """One life of a namespace: its events up to the invalidate, for views that end together.

    ``namespace`` None means all events: such views end with the merged stream. ``end`` is the sort
    key and the token of the invalidate once its cause has arrived. On several shards a collection
    is dropped by an event each, with equal or different tokens: all events up to the first
    invalidate belong to the incarnation, and all invalidates with its token. Once ``ended`` it
    takes no events.
    """

    def __init__(self, namespace: Namespace | None) -> None:
        self.namespace = namespace
        self.views = Views()
        self.end: tuple[bytes, bytes] | None = None
        self.ended = False
        self._ended_by = frozenset[bytes]() if namespace is None else namespace.ended_by
        self._events: list[bytes] = []
        self._invalidates: list[bytes] = []

    @property
    def is_whole(self) -> bool:
        """Whether it has all events of the merged stream."""
        return self.namespace is None

    def take(self, event: bytes, operation: bytes) -> None:
        """Add an event, which ``delivered`` returns; the events come in the stream's order."""
        if self.end is not None:
            self.pass_to(event_key(event))
        if self.ended:
            return
        self._events.append(event)
        if operation in self._ended_by:
            invalidate = invalidate_after(event)
            key = event_key(invalidate)
            if self.end is None:
                self.end = (key, token_of(invalidate))
            if key == self.end[0]:
                self._invalidates.append(invalidate)

    def pass_to(self, key: bytes) -> None:
        """End if all events up to the sort key ``key`` have been taken, and ``end`` is among them.

        An event with the invalidate's own key does not occur in the wider stream.
        """
        if self.end is not None and key >= self.end[0] and not self.ended:
            self._events += self._invalidates
            self.ended = True

    def delivered(self) -> list[bytes]:
        """Return the events taken since the last call."""
        events, self._events = self._events, []
        return events


class Scan:
    """A position in the log of a merged stream, and the views that have all events before it.

    ``number`` is that of the next event. ``part`` is the memory in bytes of the events to pass on
    at a time, ``traffic`` that of all scans of the stream.
    """

    def __init__(self, stream: MergedStream, number: int, traffic: Traffic) -> None:
        self.stream = stream
        self.number = number
        self.traffic = traffic
        self.part = 16 * 1024
        self.whole = Incarnation(None)
        """The views of all events."""
        self.incarnations: dict[Namespace, list[Incarnation]] = {}
        """The views of namespaces; none of the lists is empty."""
        self.databases = 0
        """The number of the incarnations that are databases'."""
        self.ending: dict[Incarnation, None] = {}
        """The incarnations whose end has arrived, but not the events that may come before it."""
        self._last: bytes | None = None
        self._mark: tuple[bytes, bytes] | None = None

    def __iter__(self) -> Iterator[View]:
        """All views."""
        yield from self.whole.views
        for incarnations in self.incarnations.values():
            for incarnation in incarnations:
                yield from incarnation.views

    def __bool__(self) -> bool:
        """Whether there are views."""
        return bool(self.whole.views or self.incarnations)

    def incarnation_of(self, namespace: Namespace | None) -> Incarnation:
        """Return the incarnation that a new view of ``namespace`` belongs to at this position."""
        if namespace is None:
            return self.whole
        for incarnation in self.incarnations.get(namespace, ()):
            if incarnation.end is None:
                return incarnation
        incarnation = Incarnation(namespace)
        self._add(incarnation, namespace)
        return incarnation

    def remove(self, incarnation: Incarnation) -> None:
        """Stop filling an incarnation, which has ended or has no views any more."""
        self.ending.pop(incarnation, None)
        namespace = incarnation.namespace
        if namespace is None:
            return
        incarnations = self.incarnations.get(namespace, [])
        if incarnation in incarnations:
            incarnations.remove(incarnation)
            self.databases -= namespace.collection is None
            if not incarnations:
                del self.incarnations[namespace]

    def absorb(self, other: "Scan") -> None:
        """Take over the views of a scan at the same position."""
        for view in other:
            view.scan = self
        for view in other.whole.views:
            view.incarnation = self.whole
            self.whole.views.add(view)
        self.ending |= other.ending
        for namespace, incarnations in other.incarnations.items():
            for incarnation in incarnations:
                if incarnation.end is not None:
                    self._add(incarnation, namespace)
                    continue
                kept = self.incarnation_of(namespace)
                for view in incarnation.views:
                    view.incarnation = kept
                    kept.views.add(view)

    def _add(self, incarnation: Incarnation, namespace: Namespace) -> None:
        self.incarnations.setdefault(namespace, []).append(incarnation)
        self.databases += namespace.collection is None

    def move(self, events: Sequence[bytes]) -> None:
        """Move beyond the next ``events``."""
        self.number += len(events)
        self._last = event_key(events[-1])

    @property
    def behind(self) -> bool:
        """Whether the log has events that its views do not have."""
        return self.number < self.stream.log.end

    @property
    def _done(self) -> bool:
        return not (self.behind or self.stream.ready)

    @property
    def error(self) -> CommandError | None:
        """The error of the merged stream, once its views have all events before it."""
        return self.stream.error if self._done else None

    @property
    def ended(self) -> bool:
        """Whether the merged stream has ended and the views have all its events."""
        return self._done and self.stream.ended

    @property
    def gate(self) -> bytes | None:
        """The sort key up to which its views have all events."""
        return self.stream.gate if self._done else self._last

    @property
    def mark(self) -> tuple[bytes, bytes] | None:
        """The high water mark of a view whose events have all been read.

        It is never an event's token, because a filter may not let that event through: then no
        stream with this filter could resume after it. The mark before the event's cluster time
        takes its place, except at an invalidate, which ends every stream.
        """
        if not self._done:
            return None if self._last is None else self._mark_before(self._last)
        mark = self.stream.mark
        if mark is None or self.stream.ended or is_high_water_mark(mark[0]):
            return mark
        return self._mark_before(mark[0])

    def _mark_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the high water mark that sorts before every event of the key's cluster time."""
        version = version_of(key)
        if version is None:
            return None
        known = self._mark
        if known is None or known[0][:_TIME_AND_VERSION] != key[:_TIME_AND_VERSION]:
            token: ResumeToken = high_water_mark(cluster_time_of(key), version)
            known = self._mark = (token.data, token.raw)
        return known
