"""The fan-out: passes the events of one merged stream on to the views of its readers.

A shard is read once for all views, and an event meets only the filters that it may match
(docs/sharing.md). No call does more than a bounded part of the work: whoever has expensive filters
or opens views of old events does not delay other clients.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from bson.int64 import Int64

from router.filters.field_walk import Allowance, TooLargeError, ValueSlice
from router.filters.layouts import PathReader
from router.filters.stream_filter import EVERYTHING, StreamFilter
from router.limits.memory import EVENT_OVERHEAD, weight
from router.stream.merge.merged_stream import MergedStream
from router.stream.readers.views import RENAME, Incarnation, LogPosition, Namespace, PartialView
from shard_client.bson.values import STRING
from shard_client.errors import CommandError, ErrorCode

LEAST_KEPT: Final = 64 * 1024
"""Bytes of memory that the events of a view may always take."""

_LEAST_FULL: Final = LEAST_KEPT // 2
_MOST_FULL: Final = 2 * LEAST_KEPT
"""Bounds of ``FanOut.full_bytes``: a larger reply costs hardly less for each event."""

_TURNS_PER_STEP: Final = 4
"""How often a step looks at the clock, about."""

_SMALLEST_TURN: Final = 1024
_LARGEST_TURN: Final = 256 * 1024
"""Bounds of the memory of the events that are passed on between two looks at the clock."""

_CLOSED: Final = CommandError(ErrorCode.CursorKilled, "the view was closed")

_RECENT_EVENTS: Final = 1000
_RECENT_BYTES: Final = 16 * 1024 * 1024
"""After so many events, or bytes of them, those read before count half."""


class Traffic:
    """The events that a fan-out has read recently, and those that its views have got.

    ``behind_since`` is the time since which events have been ready without a pause: the router
    does not keep up. None if it does.
    """

    def __init__(self) -> None:
        self._events = self._bytes = self._passed = self._passed_bytes = 0
        self._settled = False
        self.behind_since: float | None = None

    def add(self, events: int, size: int) -> None:
        """Count events of ``size`` bytes that have been read."""
        self._events += events
        self._bytes += size
        if self._events >= _RECENT_EVENTS or self._bytes >= _RECENT_BYTES:
            self._settled = True
            self._events //= 2
            self._bytes //= 2
            self._passed //= 2
            self._passed_bytes //= 2

    def add_passed(self, events: int, size: int) -> None:
        """Count events of ``size`` bytes that a filter or a namespace has let through."""
        self._passed += events
        self._passed_bytes += size

    @property
    def let_through(self) -> float:
        """How many filters or namespaces let an event through, on average."""
        return self._passed / max(1, self._events)

    @property
    def unwatched_bytes(self) -> float:
        """Bytes of an average event that are read beyond those that are let through.

        0 until enough events have been read.
        """
        if not self._settled:
            return 0.0
        return max(0, self._bytes - self._passed_bytes) / max(1, self._events)


class FanOut:
    """Passes the events in the log of ``stream`` on to views, a part at a time.

    Views that have read the log equally far share a ``LogPosition``. A view that is opened further
    back gets one of its own, until it reaches another; positions take turns.

    ``kept_bytes`` bounds the memory that the unread events of all views take. While they take
    more, the oldest events of each view that gets further ones are dropped beyond an equal share
    of it, ``LEAST_KEPT`` at least, and its reader is lost, as in a merged stream's log.
    """

    def __init__(self, stream: MergedStream, kept_bytes: int) -> None:
        self.stream = stream
        self._kept_bytes = kept_bytes
        self._turn_bytes = 16 * 1024
        self._positions: deque[LogPosition] = deque()
        self._namespaces = PathReader(((b"operationType",), (b"ns", b"db"), (b"ns", b"coll")))
        self._targets = PathReader(((b"to", b"db"), (b"to", b"coll")))
        self._parts: set[PartialView] = set()
        self.held_bytes = 0
        """Bytes of memory that the unread events of all views take."""
        self.examined = 0
        """The number of events that have been read for views."""
        self.matches = 0
        """The number of times that a view has got an event."""
        self.full_views: list[PartialView] = []
        """Views that have become full while their readers wait; clear it after these are woken."""
        self.full_bytes = _MOST_FULL
        """Bytes of memory of unread events from which on a view is full."""
        self.traffic = Traffic()

    @property
    def behind(self) -> int:
        """The number of events of the log that the views furthest back lack."""
        return max(
            (self.stream.log.end - position.number for position in self._positions), default=0
        )

    @property
    def readers(self) -> int:
        """The number of open parts."""
        return len(self._parts)

    def describe(self) -> dict[str, Any]:
        """Return what serverStatus shows: different filters and namespaces, and their events."""
        positions = self._positions
        return {
            "readers": self.readers,
            "filters": sum(len(position.whole.index) for position in positions if position.whole),
            "namespaces": sum(bool(name) for each in positions for name in each.incarnations),
            "examined": Int64(self.examined),
            "matches": Int64(self.matches),
        }

    def open(
        self, stream_filter: StreamFilter | None, after: bytes, namespace: Namespace | None = None
    ) -> PartialView:
        """Return a view of the events beyond the sort key ``after``, which must be covered.

        It has no events until ``step`` gives it some. For a namespace ``after`` must lie before all
        events of its cluster time: an earlier event of that time could end the view.
        """
        log = self.stream.log
        number = log.number_beyond(after)
        equal = (other for other in self._positions if other.number == number)
        position = next(equal, None)
        if position is None:
            position = LogPosition(self.stream, number)
            self._positions.append(position)
        floor = max(after, log.floor)
        chosen = stream_filter or EVERYTHING
        try:
            incarnation = position.incarnation_of(namespace)
            part = PartialView(position, incarnation, chosen, floor)
            incarnation.add(part)
        except Exception as error:
            # With a filter or a namespace that is half added, a view could lack events.
            self._fail(position, _unreadable(error))
            raise
        self._parts.add(part)
        self._share_memory()
        return part

    def close(self, part: PartialView) -> None:
        """Stop filling a part, whose reader has left. Idempotent."""
        if part not in self._parts:
            return
        self._parts.remove(part)
        part.failure = part.failure or _CLOSED
        self._share_memory()
        self.held_bytes -= part.log.memory
        part.incarnation.remove(part)
        if not part.incarnation.by_identity:
            part.position.remove(part.incarnation)
        if not part.position and part.position in self._positions:
            self._positions.remove(part.position)

    def forget(self, part: PartialView, number: int) -> None:
        """Drop the events of a part before ``number``, which have been read."""
        if part.log.start < number and part in self._parts:
            before = part.log.memory
            part.log.forget(number)
            self.held_bytes += part.log.memory - before

    def fail(self, error: Exception) -> None:
        """End all views, which may lack events due to ``error``; the merged stream continues."""
        for position in list(self._positions):
            self._fail(position, _unreadable(error))

    def step(self, clock: Callable[[], float], seconds: float) -> None:
        """Give views events of the log, for about so many ``seconds`` of ``clock``.

        It stops where a view becomes full whose reader waits: the reader should read first. Views
        whose events cannot be passed on fail; their readers may continue on other streams.
        """
        now = clock()
        end = now + seconds
        while now < end and not self.full_views and (position := self._next()) is not None:
            events = self.stream.log.rest_of_block(position.number, self._turn_bytes)
            try:
                self._pass(position, events)
            except Exception as error:  # noqa: BLE001 - an event that is not passed on is lost
                self._fail(position, _unreadable(error))
            else:
                self._join(position)
            began, now = now, clock()
            # Turns of about the same time, whatever an event costs.
            handled = weight(len(events), sum(map(len, events)))
            fits = handled * seconds / _TURNS_PER_STEP / max(now - began, 1e-9)
            most = min(2 * self._turn_bytes, _LARGEST_TURN, int(fits))
            self._turn_bytes = max(_SMALLEST_TURN, self._turn_bytes // 2, most)
        self.end_incarnations()

    def _next(self) -> LogPosition | None:
        """Return the next position in turn that is behind; None if there is none."""
        for _ in range(len(self._positions)):
            position = self._positions[0]
            self._positions.rotate(-1)
            if not position.behind:
                continue
            if position.number >= self.stream.log.start:
                return position
            reason = "filters are slower than other readers"  # the log has dropped events
            self._fail(position, CommandError(ErrorCode.CappedPositionLost, reason))
        return None

    def _join(self, position: LogPosition) -> None:
        """Merge the positions that have become equal."""
        for other in list(self._positions):
            if other is not position and other.number == position.number:
                position.absorb(other)
                self._positions.remove(other)

    def _fail(self, position: LogPosition, error: CommandError) -> None:
        """End the views at a position, which get no further events."""
        self._positions.remove(position)
        views = list(position)
        for view in views:
            view.failure = error
        for view in views:
            _notify(view)

    def end_incarnations(self) -> None:
        """End the incarnations whose invalidates lie within the low watermark."""
        for position in self._positions:
            for incarnation in list(position.ending):
                self._deliver(position, incarnation)

    def _share_memory(self) -> None:
        """Determine from which size on a part is full, now that a reader has come or gone."""
        # All readers may have so much unread before anything is dropped.
        share = self._kept_bytes * 3 // (4 * max(1, self.readers))
        self.full_bytes = max(_LEAST_FULL, min(_MOST_FULL, share))

    def _pass(self, position: LogPosition, events: list[bytes]) -> None:
        """Append the next events to the views of a position that they belong to."""
        self.examined += len(events)
        self.traffic.add(len(events), sum(map(len, events)))
        position.advance(events)
        if position.whole:
            self._route(events, position.whole)
        if len(position.incarnations) > (position.whole is not None):
            for incarnation in self._assign(events, position):
                self._deliver(position, incarnation)

    def _assign(self, events: Sequence[bytes], position: LogPosition) -> list[Incarnation]:
        """Add events to the incarnations of their namespaces; return those that have some."""
        met: dict[Incarnation, None] = {}
        read = self._namespaces.read
        incarnations, databases = position.incarnations, position.databases
        for event in events:
            operations, database_names, collections = read(event)
            operation = _text(event, operations) or b""
            database = _text(event, database_names) or b""
            collection = _text(event, collections)
            concerned = incarnations.get(Namespace(database, collection), ())
            if databases and collection is not None:
                concerned = [*concerned, *incarnations.get(Namespace(database, None), ())]
            if operation == RENAME:
                in_database, name = self._targets.read(event)
                if _text(event, in_database) == database:
                    target = Namespace(database, _text(event, name))
                    concerned = [*concerned, *incarnations.get(target, ())]
            for incarnation in concerned:
                incarnation.take(event, operation)
                met[incarnation] = None
        return list(met)

    def _deliver(self, position: LogPosition, incarnation: Incarnation) -> None:
        """Append the events that an incarnation has taken to the logs of its views."""
        incarnation.advance_to(position.low_watermark)
        events = incarnation.taken()
        if events:
            self._route(events, incarnation)
            if not incarnation.by_identity:
                # All have failed, and their readers may close them late.
                position.remove(incarnation)
                return
        if incarnation.end is None:
            return
        position.ending[incarnation] = None
        if incarnation.ended:
            position.remove(incarnation)
            for view in incarnation:
                _notify(view)  # a filter may leave out the invalidate, but not the end

    def _route(self, events: list[bytes], incarnation: Incarnation) -> None:
        """Append events to the views of an incarnation whose filters let them through."""
        allowances: defaultdict[int, Allowance] = defaultdict(Allowance)  # by event
        for identity, passed in self._passed(events, incarnation):
            readers = incarnation.by_identity[identity]
            first = readers[0]
            if first.filter.projections:
                try:
                    project = first.filter.project
                    passed = [project(event, allowances[id(event)]) for event in passed]
                except TooLargeError as error:
                    self._give_up(incarnation, identity, error)
                    continue
            for view in readers[1:]:
                self._append(view, list(passed))
            size = self._append(first, passed)
            self.matches += len(passed)
            self.traffic.add_passed(len(passed), size)

    def _passed(
        self, events: list[bytes], incarnation: Incarnation
    ) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the identity of each filter with the events that it lets through."""
        if b"" in incarnation.by_identity:
            yield b"", list(events)
        while len(incarnation.index):
            try:
                yield from incarnation.index.route(events)
            except TooLargeError as error:
                if not error.owners:
                    raise
                for identity in [name for name in incarnation.by_identity if name in error.owners]:
                    self._give_up(incarnation, identity, error)
            else:
                break

    def _give_up(self, incarnation: Incarnation, identity: bytes, error: TooLargeError) -> None:
        """End the views whose filter would have to look at too much of an event."""
        failure = CommandError(ErrorCode.TemporarilyUnavailable, str(error))
        for view in list(incarnation.by_identity.get(identity, ())):
            incarnation.remove(view)
            view.failure = failure
            _notify(view)

    def _append(self, view: PartialView, events: list[bytes]) -> int:
        """Append events to the log of a view; return their size in bytes."""
        count = len(events)
        size = len(events[0]) if count == 1 else sum(map(len, events))
        log = view.log
        log.append(events, size)
        self.held_bytes += size + EVENT_OVERHEAD * count
        held = log.memory
        if held >= self.full_bytes:
            if view.waited_for:
                view.waited_for = False
                self.full_views.append(view)
            if held > LEAST_KEPT and self.held_bytes > self._kept_bytes:
                log.trim(max(LEAST_KEPT, self._kept_bytes // max(1, self.readers)))
                self.held_bytes += log.memory - held
        _notify(view)
        return size


def _notify(view: PartialView) -> None:
    if view.on_events is not None:
        view.on_events()


def _text(event: bytes, elements: Sequence[ValueSlice]) -> bytes | None:
    """Return the string that a path leads to, or None."""
    kind, start, end = elements[0]
    return event[start + 4 : end - 1] if kind == STRING else None


def _unreadable(error: Exception) -> CommandError:
    """Return the error of views that an exception has ended; clients may read their own streams."""
    reason = f"events could not be passed on ({type(error).__name__}); the log has the details"
    failure = CommandError(ErrorCode.InternalError, reason)
    failure.__cause__ = error
    return failure
