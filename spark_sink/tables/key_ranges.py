"""The ranges of keys of a current table, and which of them a batch writes again.

A range has the files with its places (`range_files`). It follows from Delta's log, so it is
recorded nowhere else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import pyarrow as pa

from spark_sink.tables.parquet_parts import FILE_BYTES
from spark_sink.tables.places import LAST, cut_place, parents_of
from spark_sink.tables.range_files import bounds_of

_END = "\0"  # of the smallest string above another
# Bytes of staged changes for one task.
_MERGE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class ChangeGroup:
    """A row group of a file of staged changes, with its first and last place."""

    path: str
    number: int
    first: str
    last: str
    size: int


@dataclass(frozen=True)
class KeyRange:
    """The places from `lower` up to `upper` (None: all), and the files that have their rows.

    No row comes after the place `last`. `size` is the bytes of the files, and `rows` their number
    of rows; None if it is unknown.
    """

    lower: str = ""
    upper: str | None = None
    last: str = ""
    partitions: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    size: int = 0
    rows: int | None = 0

    def divided(self) -> list[KeyRange]:
        """Return this range; if it is large, and the place `last` is exact, what follows apart.

        So changes after the last place of a large range go to a new file.
        """
        if self.size < FILE_BYTES // 2 or self.last.endswith(LAST):
            return [self]
        after = self.last + _END
        return [replace(self, upper=after), KeyRange(after, self.upper)]


@dataclass(frozen=True)
class Merge:
    """The places from `lower` up to `upper` (None: all) that one task writes, with their changes.

    `base` is the range whose files have the rows, and may have rows of other tasks; without files
    there are none.
    """

    lower: str
    upper: str | None
    base: KeyRange
    changes: Sequence[ChangeGroup] = ()

    @property
    def size(self) -> int:
        """The bytes of files and changes that the task reads."""
        return self.base.size + sum(group.size for group in self.changes)


class KeyRanges:
    """The ranges of a version, in order; together they contain all places.

    Args:
        files: columns of the files in the order of `first`: the first and the last possible place
            of their rows, their least token, size, number of rows, partition and path.
        ranges: the indexes of the files of each range; without them there is no file.
    """

    def __init__(
        self, files: Mapping[str, list[Any]] | None = None, ranges: Sequence[range] = ()
    ) -> None:
        self._files, self._ranges = files or {}, ranges
        self._first: list[str] = [self._files["first"][span.start] for span in ranges]

    @classmethod
    def of(
        cls,
        actions: pa.Table,
        column: Callable[[str], str] = str,
        *,
        with_others: bool = False,
    ) -> KeyRanges:
        """Return the ranges of files, which are given as in `DeltaLog.files`.

        `column` returns the name that a column has in the table. Files that overlap, or share a
        partition, are one range. Files without a partition, which are of other writers, count only
        `with_others`.
        """
        files = bounds_of(actions, column, with_others=with_others)
        first = files["first"]
        starts, reached = [0][: len(first)], ""
        for index, (begin, end) in enumerate(zip(first, files["last"], strict=True)):
            if begin > reached and index:
                starts.append(index)
            if end > reached:
                reached = end
        return cls(files, [*map(range, starts, [*starts[1:], len(first)])])

    def __len__(self) -> int:
        return max(1, len(self._ranges))

    def __getitem__(self, index: int) -> KeyRange:
        if not self._ranges:
            return KeyRange()
        lower, last = self._lower(index), self._last(index)
        names = ("partition", "path", "size", "rows")
        partitions, paths, sizes, rows = (tuple(self._of_range(index, name)) for name in names)
        count = None if None in rows else sum(rows)
        return KeyRange(lower, self.upper(index), last, partitions, paths, sum(sizes), count)

    def files(self) -> list[tuple[str, str, str]]:
        """Return for each file its first and its last possible place, and its path."""
        columns = (self._files[name] for name in ("first", "last", "path"))
        return [*zip(*columns, strict=True)]

    def index(self, place: str) -> int:
        """Return the index of the range that a place belongs to."""
        index = max(0, bisect_right(self._first, place) - 1)
        upper = self.upper(index)
        return index if upper is None or place < upper else index + 1

    def upper(self, index: int) -> str | None:
        """Return where the next range begins; None for the last range."""
        return self._lower(index + 1) if index + 1 < len(self) else None

    def older(self, token: str, prefixes: Iterable[str]) -> set[int]:
        """Return the indexes of ranges that may have rows below a token at places with prefixes."""
        indexes: set[int] = set()
        for prefix in prefixes:
            begin = bisect_left(range(len(self._ranges)), prefix, key=self._last)
            for index in range(begin, bisect_left(self._first, prefix + LAST)):
                if any((known or "") < token for known in self._of_range(index, "token")):
                    indexes.add(index)
        return indexes

    def without(self, indexes: Collection[int]) -> KeyRanges:
        """Return the ranges of the files that are not in the ranges with these indexes."""
        ranges = [files for index, files in enumerate(self._ranges) if index not in indexes]
        return KeyRanges(self._files, ranges)

    def _of_range(self, index: int, name: str) -> list[Any]:
        """Return a column of the files of a range."""
        files = self._ranges[index]
        return self._files[name][files.start : files.stop]

    def _last(self, index: int) -> str:
        return str(max(self._of_range(index, "last")))

    def _lower(self, index: int) -> str:
        """Return where a range begins: before its database or collection, unless it shares that."""
        if index == 0:
            return ""
        first, before = self._first[index], self._last(index - 1)
        database, collection = parents_of(first)
        return next((bound for bound in (database, collection) if before < bound <= first), first)


def merges_of(
    ranges: KeyRanges,
    changes: Sequence[ChangeGroup],
    places: Callable[[ChangeGroup], Sequence[str]],
) -> list[Merge]:
    """Return the merges that changes need, in order; each is the work of one task.

    A change belongs to the range with its place. A range with many changes is divided. `places`
    reads the places of a group, and is called only for a group that spans several ranges.

    For example, files with the places b to f, k to p and n to t are two ranges, because the last
    two files overlap: one up to k, and one from k on. Changes at c and m need a merge of each. A
    change at z needs the second one as well, or, if that range is large, a merge of the places
    after t, which has no files.
    """
    touched = (_indexes(group, ranges.index, ranges.upper, places) for group in changes)
    indexes = sorted({index for part in touched for index in part})
    bases = [base for index in indexes for base in ranges[index].divided()]
    lowers = sorted(_lowers([base.lower for base in bases], changes))
    find, uppers = partial(bisect_right, [*lowers[1:]]), [*lowers[1:], None]
    own: dict[str, list[ChangeGroup]] = defaultdict(list)
    for group in changes:
        for index in _indexes(group, find, uppers.__getitem__, places):
            own[lowers[index]].append(group)
    merges = []
    for base in bases:
        end = len(lowers) if base.upper is None else bisect_left(lowers, base.upper)
        inside = lowers[bisect_left(lowers, base.lower) : end]
        if any(lower in own for lower in inside):
            spans = zip(inside, [*inside[1:], base.upper], strict=True)
            merges += [Merge(*s, base, own[s[0]]) for s in spans if base.paths or s[0] in own]
    return merges


def merges_of_rest(ranges: KeyRanges, merges: Iterable[Merge]) -> list[Merge]:
    """Return merges without changes of all files that the given merges do not write again."""
    written = {merge.base.lower for merge in merges if merge.base.paths}
    every = (ranges[index] for index in range(len(ranges)))
    rest = (base for base in every if base.paths and base.lower not in written)
    return [Merge(base.lower, base.upper, base) for base in rest]


def _lowers(bases: Sequence[str], changes: Iterable[ChangeGroup]) -> set[str]:
    """Return the first places of merges: of all ranges, and where one has too many changes."""
    sizes: dict[str, int] = {}
    lowers = {*bases}
    for group in sorted(changes, key=attrgetter("first")):
        first = cut_place(group.first)
        base = bases[bisect_right(bases, first) - 1]
        size = sizes.get(base, 0)
        if size and size + group.size > _MERGE_BYTES:
            lowers.add(first)
            size = 0
        sizes[base] = size + group.size
    return lowers


def _indexes(
    group: ChangeGroup,
    index_of: Callable[[str], int],
    upper_of: Callable[[int], str | None],
    places: Callable[[ChangeGroup], Sequence[str]],
) -> Iterable[int]:
    """Return the indexes of the ranges that have a place of a group."""
    first, last = index_of(group.first), index_of(group.last)
    if last - first < 2:
        return range(first, last + 1)
    indexes, ordered, start = [], places(group), 0
    while start < len(ordered):
        indexes.append(index_of(ordered[start]))
        upper = upper_of(indexes[-1])
        start = len(ordered) if upper is None else bisect_left(ordered, upper, start)
    return indexes
