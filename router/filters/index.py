"""An index over filters: an event meets only the filters that its fields may satisfy."""

from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import chain, islice
from typing import Final, Generic, TypeVar

from router.filters.bounds import MOST_COMPARED, MOST_LOOKS, TooLargeError
from router.filters.conditions import MOST_PAIRS, OneOf
from router.filters.fields import Element, Path, Value
from router.filters.paths import PathReader
from router.filters.stream_filter import StreamFilter
from router.filters.values import CONTAINERS, INT32, STRING, is_nested, key, unpack_int32

T = TypeVar("T", bound=Hashable)

_MOST_SUSPECTS: Final = 100
"""Paths that are read one by one to find the one at which an event is too large."""

_MOST_KNOWN: Final = 10_000
_LONGEST_KNOWN: Final = 64
"""Bounds of the values, and of the bytes of one, whose filters are remembered."""


class _Entry(Generic[T]):
    """One filter and the owner to which its events belong.

    ``certain``: an event with one of the hashed values meets the condition. ``events`` are the
    events of the current batch that meet it.
    """

    __slots__ = ("certain", "events", "filter", "owner")

    def __init__(self, stream_filter: StreamFilter, owner: T, *, certain: bool) -> None:
        self.filter = stream_filter
        self.owner = owner
        self.certain = certain
        self.events: list[bytes] = []


class _Event:
    """The fields of one event, read when the first condition asks for one."""

    __slots__ = ("_found", "_left", "_reader", "data")

    def __init__(self, data: bytes, reader: PathReader) -> None:
        self.data = data
        self._reader = reader
        self._left = MOST_LOOKS
        self._found: dict[Path, list[Element]] | None = None

    def at(self, path: Path) -> Sequence[Element]:
        """Return the elements at ``path``. Raises TooLargeError."""
        if self._found is None:
            self._found = dict(zip(self._reader.paths, self._reader.read(self.data), strict=True))
        elements = self._found[path]
        self._left -= len(elements)
        if self._left < 0:
            raise TooLargeError
        return elements

    @property
    def crowded(self) -> Path | None:
        """The path with the most values, once the conditions have looked at too many."""
        if self._found is None or self._left >= 0:
            return None
        found = self._found
        return max(found, key=lambda path: len(found[path]))


class FilterIndex(Generic[T]):
    """Filters by owner.

    Values that a filter requires are hashed by path and value: the cost of an event grows with the
    filters that it meets, not with their number. Filters that require none (a range, a negation)
    are tried on every event.
    """

    def __init__(self) -> None:
        self._entries: dict[T, _Entry[T]] = {}
        self._tables: dict[Path, dict[Hashable, list[_Entry[T]]]] = {}
        self._always: list[_Entry[T]] = []
        # With one hashed path: the filters that require a value, by its type and bytes.
        self._known: dict[Value, Sequence[_Entry[T]]] = {}
        self._in_order: Sequence[dict[Hashable, list[_Entry[T]]]] = ()
        self._nested: set[Path] = set()
        """The hashed paths with documents or arrays among the values."""
        self._hashed = PathReader(())
        self._others = PathReader(())
        self._stale = False

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, owner: T, stream_filter: StreamFilter) -> None:
        """Add a filter; ``owner`` must not have one yet."""
        condition = stream_filter.condition
        required = condition.required()
        entry = _Entry(stream_filter, owner, certain=isinstance(condition, OneOf))
        self._entries[owner] = entry
        if required is None or len(required) > MOST_PAIRS:
            entry.certain = False
            self._always.append(entry)
        else:
            for path, value in required:
                self._tables.setdefault(path, {}).setdefault(value, []).append(entry)
        self._stale = True

    def remove(self, owner: T) -> None:
        """Remove the owner's filter, if it has one."""
        entry = self._entries.pop(owner, None)
        if entry is None:
            return
        required = entry.filter.condition.required()
        if required is None or len(required) > MOST_PAIRS:
            self._always.remove(entry)
        else:
            for path, value in required:
                table = self._tables[path]
                table[value].remove(entry)
                if not table[value]:
                    del table[value]
                if not table:
                    del self._tables[path]
        self._stale = True

    def route(self, events: Iterable[bytes]) -> list[tuple[T, list[bytes]]]:
        """Return the owners whose filters some of the events meet, with these events, in order.

        The events are not projected yet. Raises ValueError, IndexError or struct.error if an event
        is malformed. Raises TooLargeError, a ValueError, if an event has more at some filters'
        paths than the router looks at: without their owners the same events may be routed. After
        an error the index is as before.
        """
        if self._stale:
            self._prepare()
        met: list[_Entry[T]] = []
        try:
            self._route(events, met)
            return [(entry.owner, entry.events) for entry in met]
        finally:
            for entry in met:
                entry.events = []

    def _route(self, events: Iterable[bytes], met: list[_Entry[T]]) -> None:
        """Append the events to those of the entries that they meet, and new entries to ``met``."""
        always, others, candidates = self._always, self._others, self._candidates
        known, value = self._known, self._hashed.value if len(self._in_order) == 1 else None
        for data in events:
            only = None if value is None else value(data)
            if only is None:
                entries = candidates(data)
            else:
                remembered = known.get(only)
                entries = self._find(only) if remembered is None else remembered
            if always:
                entries = [*entries, *always]
            event: _Event | None = None
            for entry in entries:
                routed = entry.events
                # A filter may be found by several values of one event.
                if routed and routed[-1] is data:
                    continue
                if not entry.certain:
                    event = event or _Event(data, others)
                    try:
                        if not entry.filter.condition.meets(event):
                            continue
                    except TooLargeError:
                        raise self._too_large(others, event, entry) from None
                if not routed:
                    met.append(entry)
                routed.append(data)

    def _too_large(self, reader: PathReader, event: _Event, tried: _Entry[T]) -> TooLargeError:
        """Return the error that names the owners whose filters need too much of an event."""
        guilty = event.crowded or _unreadable(reader, event.data)
        if guilty is None:
            return TooLargeError(frozenset({tried.owner}))
        return TooLargeError(self._needing({guilty}))

    def _needing(self, paths: Collection[Path]) -> frozenset[T]:
        """Return the owners of the filters that read one of ``paths``."""
        return frozenset(
            owner
            for owner, entry in self._entries.items()
            if any(path in paths for path in entry.filter.condition.paths())
        )

    def _candidates(self, data: bytes) -> Sequence[_Entry[T]]:
        """Return the filters that require a value which the event ``data`` has."""
        found: Sequence[_Entry[T]] = ()
        # Many elements of an array may have one value, and many values one filter.
        more: dict[int, Sequence[_Entry[T]]] = {}
        try:
            read = self._hashed.read(data)
        except TooLargeError:
            paths = self._hashed.paths
            guilty = _unreadable(self._hashed, data)
            raise TooLargeError(self._needing(paths if guilty is None else {guilty})) from None
        for path, table, elements in zip(self._hashed.paths, self._in_order, read, strict=True):
            compared = 0
            for kind, start, end in elements:
                value: Hashable
                if kind == STRING:
                    value = data[start + 4 : end - 1]
                elif kind == INT32:
                    value = unpack_int32(data, start)[0]
                else:
                    if kind in CONTAINERS:
                        if path not in self._nested:
                            continue
                        compared += end - start
                        if compared > MOST_COMPARED:
                            raise TooLargeError(self._needing({path}))
                    value = key(data, kind, start, end)
                entries = table.get(value)
                if entries is None or entries is found:
                    continue
                if found:
                    more[id(entries)] = entries
                else:
                    found = entries
        return list(dict.fromkeys(chain(found, *more.values()))) if more else found

    def _find(self, only: Value) -> Sequence[_Entry[T]]:
        """Return the filters that require a value at the only hashed path, and remember them."""
        kind, data = only
        found = self._in_order[0].get(key(data, kind, 0, len(data)), ())
        if len(data) <= _LONGEST_KNOWN:
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[only] = found
        return found

    def _prepare(self) -> None:
        """Decide which paths are read."""
        self._known.clear()
        self._in_order = tuple(self._tables.values())
        self._nested = {path for path, table in self._tables.items() if any(map(is_nested, table))}
        self._hashed = _reader(self._hashed, self._tables)
        paths: dict[Path, None] = {}
        for entry in self._entries.values():
            if not entry.certain:
                paths.update(dict.fromkeys(entry.filter.condition.paths()))
        self._others = _reader(self._others, paths)
        self._stale = False


def _reader(known: PathReader, paths: Iterable[Path]) -> PathReader:
    """Return a reader of ``paths``: ``known``, with what it has learned, if it reads them."""
    wanted = tuple(paths)
    return known if known.paths == wanted else PathReader(wanted)


def _unreadable(reader: PathReader, data: bytes) -> Path | None:
    """Return one of the paths that are too large to read in ``data`` even alone, or None."""
    for path in islice(reader.paths, _MOST_SUSPECTS):
        try:
            PathReader((path,)).walk(data)
        except TooLargeError:
            return path
    return None
