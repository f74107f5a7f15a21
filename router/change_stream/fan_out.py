"""The fan-out: passes the events of one merged stream on to the views of its readers.

A shard is read once for all views, and an event meets only the filters that it may match
(docs/sharing.md). No call does more than a bounded part of the work: whoever has expensive filters
or opens views of old events delays nobody else.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from router.change_stream.merged_stream import MergedStream
from router.change_stream.namespace import RENAME, Namespace
from router.change_stream.traffic import Traffic
from router.change_stream.views import Incarnation, Scan, View, Views
from router.filters.bounds import Allowance, TooLargeError
from router.filters.fields import Element
from router.filters.paths import PathReader
from router.filters.stream_filter import StreamFilter
from router.filters.values import STRING
from router.merge.merger import EVENT_OVERHEAD, weight
from shard_client.error_codes import ErrorCode
from shard_client.errors import CommandError

LEAST_KEPT: Final = 64 * 1024
"""Bytes of memory that the events of a view may always take."""

_LEAST_FULL: Final = LEAST_KEPT // 2
_MOST_FULL: Final = 2 * LEAST_KEPT
"""Bounds of ``FanOut.full``: a larger reply costs hardly less for each event."""

_PART: Final = 1 / 4
"""Fraction of a step's time after which it looks at the clock."""

_SMALLEST_PART: Final = 1024
_LARGEST_PART: Final = 256 * 1024
"""Bounds of the memory of the events that are passed on between two looks at the clock."""


class FanOut:
    """Passes the events in the log of ``stream`` on to views, a part at a time.

    Views at one position share a scan of the log. A view that is opened further back gets a scan
    of its own, which joins another one when it arrives at the same position; scans take turns.

    ``kept_bytes`` bounds the memory that the unread events of all views take. While they take
    more, the oldest events of each view that gets further ones are dropped beyond an equal share
    of it, ``LEAST_KEPT`` at least, and its reader is lost, as in a merged stream's log.
    """

    def __init__(self, stream: MergedStream, kept_bytes: int) -> None:
        self.stream = stream
        self._kept_bytes = kept_bytes
        self._scans: deque[Scan] = deque()
        self._namespaces = PathReader(((b"operationType",), (b"ns", b"db"), (b"ns", b"coll")))
        self._targets = PathReader(((b"to", b"db"), (b"to", b"coll")))
        self.readers = 0
        """The number of open views."""
        self.held_bytes = 0
        """Bytes of memory that the unread events of all views take."""
        self.examined = 0
        """The number of events that have been read for views."""
        self.matches = 0
        """The number of times that a view has got an event."""
        self.pressed: list[View] = []
        """Views that have become full while their readers wait; clear it after these are woken."""
        self.full = _MOST_FULL
        """Bytes of memory of unread events from which on a view is full."""
        self.traffic = Traffic()

    @property
    def filters(self) -> int:
        """The number of different filters of views without a namespace."""
        return sum(len(scan.whole.views.index) for scan in self._scans)

    @property
    def namespaces(self) -> int:
        """The number of namespaces that have views."""
        return sum(len(scan.incarnations) for scan in self._scans)

    @property
    def behind(self) -> bool:
        """Whether views lack events of the log."""
        return any(scan.behind for scan in self._scans)

    @property
    def lag(self) -> int:
        """The number of events of the log that the views furthest back lack."""
        return max((self.stream.log.end - scan.number for scan in self._scans), default=0)

    def open(
        self, stream_filter: StreamFilter, after: bytes, namespace: Namespace | None = None
    ) -> View:
        """Return a view, which ``step`` gives all its events beyond the sort key ``after``.

        The merged stream must cover ``after``. For a namespace it must lie before all events of
        its cluster time: an earlier event of that time could end the view.
        """
        log = self.stream.log
        number = log.number_beyond(after)
        scan = next((each for each in self._scans if each.number == number), None)
        if scan is None:
            scan = Scan(self.stream, number, self.traffic)
            self._scans.append(scan)
        incarnation = scan.incarnation_of(namespace)
        view = View(scan, incarnation, stream_filter, max(after, log.floor))
        incarnation.views.add(view)
        self._count_readers(1)
        return view

    def close(self, view: View) -> None:
        """Stop filling a view; its reader has left. Idempotent."""
        if view.closed:
            return
        view.closed = True
        self._count_readers(-1)
        self.held_bytes -= view.log.memory
        view.incarnation.views.remove(view)
        if not view.incarnation.views:
            view.scan.remove(view.incarnation)
        if not view.scan and view.scan in self._scans:
            self._scans.remove(view.scan)

    def forget(self, view: View, number: int) -> None:
        """Drop the events of a view before ``number``, which have been read."""
        if view.log.start < number and not view.closed:
            before = view.log.memory
            view.log.forget(number)
            self.held_bytes += view.log.memory - before

    def fail(self, error: Exception) -> None:
        """End all views, which may lack events by ``error``; the merged stream goes on."""
        for scan in self._scans:
            self._fail(scan, _unreadable(error))
        self._scans.clear()

    def step(self, clock: Callable[[], float], seconds: float) -> None:
        """Give views events of the log, for about so many ``seconds`` of ``clock``.

        It stops where a view becomes full whose reader waits: the reader should read first. Views
        whose events cannot be passed on fail; their readers may continue on other streams.
        """
        now = clock()
        end = now + seconds
        while now < end and not self.pressed and (scan := self._next()) is not None:
            events = self.stream.log.block_from(scan.number, scan.part)
            try:
                self._pass(scan, events)
            except Exception as error:  # noqa: BLE001 - an event that is not passed on is lost
                self._scans.remove(scan)
                self._fail(scan, _unreadable(error))
            else:
                self._join(scan)
            began, now = now, clock()
            # About a part of the step at a time, whatever an event costs.
            passed = weight(len(events), sum(map(len, events)))
            fits = passed * seconds * _PART / max(now - began, 1e-9)
            most = min(2 * scan.part, _LARGEST_PART, int(fits))
            scan.part = max(_SMALLEST_PART, scan.part // 2, most)
        self.settle()

    def _next(self) -> Scan | None:
        """Return the next scan in turn that is behind; None if there is none."""
        for _ in range(len(self._scans)):
            scan = self._scans[0]
            self._scans.rotate(-1)
            if not scan.behind:
                continue
            if scan.number >= self.stream.log.start:
                return scan
            self._scans.remove(scan)
            self._fail(scan, _overtaken())
        return None

    def _join(self, scan: Scan) -> None:
        """Let scans at one position go on as one."""
        for other in [each for each in self._scans if each is not scan]:
            if other.number == scan.number:
                scan.absorb(other)
                self._scans.remove(other)

    def _fail(self, scan: Scan, error: CommandError) -> None:
        views = list(scan)
        for view in views:
            view.failure = error
        for view in views:
            _tell(view)

    def settle(self) -> None:
        """End the incarnations whose invalidates lie within the gate."""
        for scan in self._scans:
            for incarnation in list(scan.ending):
                self._deliver(scan, incarnation)

    def _count_readers(self, more: int) -> None:
        """Update the number of readers and what follows from it."""
        self.readers += more
        # All readers may have so much unread before anything is dropped.
        share = self._kept_bytes * 3 // (4 * max(1, self.readers))
        self.full = max(_LEAST_FULL, min(_MOST_FULL, share))

    def _pass(self, scan: Scan, events: list[bytes]) -> None:
        """Append the next events to the views of a scan that they belong to."""
        self.examined += len(events)
        self.traffic.add(len(events), sum(map(len, events)))
        scan.move(events)
        if scan.whole.views:
            self._route(events, scan.whole.views)
        if scan.incarnations:
            for incarnation in self._sort(events, scan):
                self._deliver(scan, incarnation)

    def _sort(self, events: Sequence[bytes], scan: Scan) -> list[Incarnation]:
        """Add events to the incarnations of their namespaces; return those that have some."""
        met: dict[Incarnation, None] = {}
        read, incarnations, databases = self._namespaces.read, scan.incarnations, scan.databases
        for event in events:
            operations, database_names, collections = read(event)
            operation = _text(event, operations) or b""
            database = _text(event, database_names) or b""
            collection = _text(event, collections)
            found = incarnations.get(Namespace(database, collection), ())
            if databases and collection is not None:
                found = [*found, *incarnations.get(Namespace(database, None), ())]
            if operation == RENAME:
                in_database, name = self._targets.read(event)
                if _text(event, in_database) == database:
                    target = Namespace(database, _text(event, name))
                    found = [*found, *incarnations.get(target, ())]
            for incarnation in found:
                incarnation.take(event, operation)
                met[incarnation] = None
        return list(met)

    def _deliver(self, scan: Scan, incarnation: Incarnation) -> None:
        """Append the events that an incarnation has taken to the logs of its views."""
        gate = scan.gate
        if gate is not None:
            incarnation.pass_to(gate)
        events = incarnation.delivered()
        if events:
            self._route(events, incarnation.views)
            if not incarnation.views:
                scan.remove(incarnation)  # all have failed, and their readers may close them late
                return
        if incarnation.end is None:
            return
        scan.ending[incarnation] = None
        if incarnation.ended:
            scan.remove(incarnation)
            for view in incarnation.views:
                _tell(view)  # a filter may leave out the invalidate, but not the end

    def _route(self, events: list[bytes], views: Views) -> None:
        """Append events to the views whose filters let them through."""
        allowances: defaultdict[int, Allowance] = defaultdict(Allowance)  # by event
        for identity, passed in self._passed(events, views):
            readers = views.by_identity[identity]
            first = readers[0]
            if first.filter.projections:
                try:
                    project = first.filter.project
                    passed = [project(each, allowances[id(each)]) for each in passed]
                except TooLargeError as error:
                    self._give_up(views, identity, error)
                    continue
            for view in readers[1:]:
                self._append(view, list(passed))
            size = self._append(first, passed)
            self.matches += len(passed)
            self.traffic.add_passed(len(passed), size)

    def _passed(self, events: list[bytes], views: Views) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the identity of each filter with the events that it lets through."""
        if b"" in views.by_identity:
            yield b"", list(events)
        while len(views.index):
            try:
                yield from views.index.route(events)
            except TooLargeError as error:
                if not error.owners:
                    raise
                for identity in [each for each in views.by_identity if each in error.owners]:
                    self._give_up(views, identity, error)
            else:
                break

    def _give_up(self, views: Views, identity: bytes, error: TooLargeError) -> None:
        """End the views whose filter would have to look at too much of an event."""
        failure = CommandError(ErrorCode.TemporarilyUnavailable, str(error))
        for view in list(views.by_identity.get(identity, ())):
            views.remove(view)
            view.failure = failure
            _tell(view)

    def _append(self, view: View, events: list[bytes]) -> int:
        """Append events to the log of a view; return their size in bytes."""
        count = len(events)
        size = len(events[0]) if count == 1 else sum(map(len, events))
        log = view.log
        log.append(events, size)
        self.held_bytes += size + EVENT_OVERHEAD * count
        held = log.memory
        if held >= self.full:
            if view.waited_for:
                view.waited_for = False
                self.pressed.append(view)
            if held > LEAST_KEPT and self.held_bytes > self._kept_bytes:
                log.trim(max(LEAST_KEPT, self._kept_bytes // max(1, self.readers)))
                self.held_bytes += log.memory - held
        _tell(view)
        return size


def _tell(view: View) -> None:
    if view.on_events is not None:
        view.on_events()


def _text(event: bytes, elements: Sequence[Element]) -> bytes | None:
    """Return the string that a path leads to, or None."""
    kind, start, end = elements[0]
    return event[start + 4 : end - 1] if kind == STRING else None


def _unreadable(error: Exception) -> CommandError:
    """Return the error of views that an exception has ended; clients may read their own streams."""
    reason = f"events could not be passed on ({type(error).__name__}); the log has the details"
    failure = CommandError(ErrorCode.InternalError, reason)
    failure.__cause__ = error
    return failure


def _overtaken() -> CommandError:
    """Return the error of views that lack events which the log has dropped."""
    return CommandError(ErrorCode.CappedPositionLost, "filters are slower than other readers")
