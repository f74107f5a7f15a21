"""An index over filters: an event meets only the filters that its fields may satisfy."""

from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import Final, Generic, TypeVar

from router.filters.conditions import Condition
from router.filters.field_walk import (
    DECIMAL_UNITS,
    MOST_WORK,
    NESTED_UNIT_BYTES,
    UNIT_BYTES,
    Path,
    TooLargeError,
    Value,
    ValueSlice,
    read_fields,
    tree_of,
)
from router.filters.layouts import EventFields, PathReader
from router.filters.stream_filter import StreamFilter
from router.filters.values import is_nested, key, unpack_int32
from shard_client.bson.values import CONTAINERS, DECIMAL, INT32, STRING

T = TypeVar("T", bound=Hashable)

_HEAVY: Final = MOST_WORK // 30
"""Units from which on it does not matter how much work one path needs."""

_PART: Final = 1 / 8

_MOST_KNOWN: Final = 10_000
_LONGEST_KNOWN: Final = 64
"""Bounds of the values, and of the bytes of one, whose filters are remembered."""


class _Entry(Generic[T]):
    """The condition of one filter and the owner to which its events belong.

    ``certain``: an event with one of the hashed values meets the condition. ``events`` are the
    events of the current batch that meet it.
    """

    __slots__ = ("certain", "condition", "events", "owner")

    def __init__(self, condition: Condition, owner: T) -> None:
        self.condition = condition
        self.owner = owner
        self.certain = condition.certain
        self.events: list[bytes] = []


class FilterIndex(Generic[T]):
    """Filters by owner.

    Values that a filter requires are hashed by path and value: the cost of an event grows with the
    filters that it meets, not with their number. Filters that require none (a range, a negation)
    are tried on every event.
    """

    def __init__(self) -> None:
        self._entries: dict[T, _Entry[T]] = {}
        self._owners: dict[Path, dict[T, None]] = {}
        """The owners of the filters that read each path."""
        self._tables: dict[Path, dict[Hashable, list[_Entry[T]]]] = {}
        self._always: list[_Entry[T]] = []
        # With one hashed path: the filters that require a value, by its type and bytes.
        self._known: dict[Value, Sequence[_Entry[T]]] = {}
        self._in_order: Sequence[dict[Hashable, list[_Entry[T]]]] = ()
        self._nested: set[Path] = set()
        """The hashed paths with documents or arrays among the values."""
        self._hashed = PathReader(())
        self._others = PathReader(())
        self._event = EventFields(self._others)
        self._stale = False

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, owner: T, stream_filter: StreamFilter) -> None:
        """Add a filter; ``owner`` must not have one yet."""
        condition = stream_filter.condition
        entry = _Entry(condition, owner)
        self._entries[owner] = entry
        for path in condition.paths:
            self._owners.setdefault(path, {})[owner] = None
        if condition.required is None:
            self._always.append(entry)
        else:
            for path, value in condition.required:
                self._tables.setdefault(path, {}).setdefault(value, []).append(entry)
        self._stale = True

    def remove(self, owner: T) -> None:
        """Remove the owner's filter, if it has one."""
        entry = self._entries.pop(owner, None)
        if entry is None:
            return
        condition = entry.condition
        for path in set(condition.paths):
            del self._owners[path][owner]
            if not self._owners[path]:
                del self._owners[path]
        if condition.required is None:
            self._always.remove(entry)
        else:
            for path, value in condition.required:
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
        is malformed. Raises TooLargeError, a ValueError, if the filters need more work on an event
        than ``MOST_WORK``: without its owners the same events may be routed, or others are named.
        After an error the index is as before.
        """
        if self._stale:
            self._prepare()
        met: list[_Entry[T]] = []
        try:
            self._route(events, met)
            return [(entry.owner, entry.events) for entry in met]
        finally:
            if self._event.data:
                self._event.forget()
            for entry in met:
                entry.events = []

    def _route(self, events: Iterable[bytes], met: list[_Entry[T]]) -> None:
        """Append the events to those of the entries that they meet, and new entries to ``met``."""
        always, event, candidates = self._always, self._event, self._candidates
        known, value = self._known, self._hashed.value if len(self._in_order) == 1 else None
        for data in events:
            event.left = MOST_WORK
            only = None if value is None else value(data)
            if only is None:
                try:
                    entries = candidates(data)
                except TooLargeError:
                    raise self._too_large(data) from None
            else:
                remembered = known.get(only)
                entries = self._find(only) if remembered is None else remembered
            if always:
                entries = [*entries, *always]
            for entry in entries:
                routed = entry.events
                # A filter may be found by several values of one event.
                if routed and routed[-1] is data:
                    continue
                if not entry.certain:
                    try:
                        if event.data is not data:
                            event.read(data)
                        meets = entry.condition.meets
                        if not meets(event):
                            continue
                    except TooLargeError:
                        raise self._too_large(data) from None
                if not routed:
                    met.append(entry)
                routed.append(data)

    def _too_large(self, data: bytes) -> TooLargeError:
        """Return the error that names the owners of the filters with the most work on an event.

        They read a path that needs at least ``_PART`` of what the heaviest path needs, or one that
        cannot be measured with one allowance for all paths. Without them the heaviest path needs
        less than that part: after a few such errors no path needs much.
        """
        left = MOST_WORK
        needed: dict[Path, int] = {}
        for path in self._owners:
            if left <= 0:
                break
            needed[path] = _needed(data, path)
            left -= needed[path]
        least = max(needed.values()) * _PART
        heavy = (owner for path, owner in self._owners.items() if needed.get(path, least) >= least)
        return TooLargeError(frozenset(chain.from_iterable(heavy)))

    def _candidates(self, data: bytes) -> Sequence[_Entry[T]]:
        """Return the filters that require a value which the event ``data`` has."""
        candidates: Sequence[_Entry[T]] = ()
        # Many elements of an array may have one value, and many values one filter.
        more: dict[int, Sequence[_Entry[T]]] = {}
        event = self._event
        read = self._hashed.read(data, event)
        for path, table, elements in zip(self._hashed.paths, self._in_order, read, strict=True):
            for kind, start, end in elements:
                value: Hashable
                if kind == STRING:
                    if end - start > UNIT_BYTES:
                        event.spend((end - start) // UNIT_BYTES)
                    value = data[start + 4 : end - 1]
                elif kind == INT32:
                    value = unpack_int32(data, start)[0]
                else:
                    if kind not in CONTAINERS:
                        units = DECIMAL_UNITS if kind == DECIMAL else (end - start) // UNIT_BYTES
                    elif path in self._nested:
                        units = (end - start) // NESTED_UNIT_BYTES
                    else:
                        continue
                    event.spend(units)
                    value = key(data, kind, start, end)
                entries = table.get(value)
                if entries is None or entries is candidates:
                    continue
                if not candidates:
                    candidates = entries
                elif id(entries) not in more:
                    event.spend(len(entries))
                    more[id(entries)] = entries
        return list(dict.fromkeys(chain(candidates, *more.values()))) if more else candidates

    def _find(self, only: Value) -> Sequence[_Entry[T]]:
        """Return the filters that require a value at the only hashed path, and remember them."""
        kind, data = only
        entries = self._in_order[0].get(key(data, kind, 0, len(data)), ())
        if len(data) <= _LONGEST_KNOWN:
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[only] = entries
        return entries

    def _prepare(self) -> None:
        """Decide which paths are read."""
        self._known.clear()
        self._in_order = tuple(self._tables.values())
        self._nested = {path for path, table in self._tables.items() if any(map(is_nested, table))}
        self._hashed = _reader(self._hashed, self._tables)
        paths: dict[Path, None] = {}
        for entry in self._entries.values():
            if not entry.certain:
                paths.update(dict.fromkeys(entry.condition.paths))
        self._others = _reader(self._others, paths)
        self._event = EventFields(self._others)
        self._stale = False


def _reader(reader: PathReader, paths: Iterable[Path]) -> PathReader:
    """Return a reader of ``paths``: ``known``, with what it has learned, if it reads them."""
    wanted = tuple(paths)
    return reader if reader.paths == wanted else PathReader(wanted)


def _needed(data: bytes, path: Path) -> int:
    """Return the work of reading and comparing all values at ``path`` alone, ``_HEAVY`` at most."""
    elements: list[ValueSlice] = []
    try:
        left = read_fields(data, 0, tree_of((path,)), [elements], _HEAVY)
    except TooLargeError:
        return _HEAVY
    size = sum(end - start for _, start, end in elements)
    return min(_HEAVY, _HEAVY - left + size // NESTED_UNIT_BYTES)
