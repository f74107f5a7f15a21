"""The ranges of keys of a current table, and which of them a batch writes again.

Rows are ordered by database, collection and key. A place is these three as one string, which sorts
alike: names and keys, which are JSON, have no zero character. Each partition of the table is a
range of places, with one file. The ranges follow from the least and the greatest values of each
file's columns in Delta's log, so they are recorded nowhere else. Files of other writers may
overlap: they are one range until a batch writes them again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from hashlib import blake2b
from operator import attrgetter, xor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.tables.parquet_parts import FILE_BYTES, PartFile

KEY_COLUMNS = ("database", "collection", "key")
KEY_RANGE = "keyRange"
"""The partition column of a current table."""
LAST = "\U0010ffff" * 64
"""Sorts after all keys, which are JSON, and after all names, which have at most 255 bytes."""
_END = "\0"  # of the smallest string above another
# Bytes of staged changes for one task.
_MERGE_BYTES = 64 * 1024 * 1024
_LAST_BEFORE_SURROGATES, _AFTER_SURROGATES = 0xD7FF, 0xE000
# The longest part of a key in the statistics of a file.
_KEY_CHARACTERS = 1024


def places_of(rows: pa.Table | pa.RecordBatch, *names: str) -> pa.Array:
    """Return the places of rows with the columns `names`, by default KEY_COLUMNS."""
    places = pc.binary_join_element_wise(*(rows[name] for name in names or KEY_COLUMNS), "\0")
    return places.combine_chunks() if isinstance(places, pa.ChunkedArray) else places


def partitions_of(actions: pa.Table) -> set[str]:
    """Return the partitions of files, which are given as in `DeltaLog.files`."""
    return {name or "" for name in _text(actions, f"partition.{KEY_RANGE}").to_pylist()}


def partition_digest(partitions: Collection[str]) -> int:
    """Return a number for a set of partitions: the XOR of a hash of each."""
    hashes = (blake2b(name.encode(), digest_size=6).digest() for name in partitions)
    return reduce(xor, (int.from_bytes(hashed) for hashed in hashes), 0)


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


@dataclass
class Merge:
    """The places from `lower` up to `upper` (None: all) that one task writes, with their changes.

    `base` is the range whose files have the rows, and may have rows of other tasks; without files
    there are none.
    """

    lower: str
    upper: str | None
    base: KeyRange
    changes: list[ChangeGroup] = field(default_factory=list)

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
        is_whole: bool = False,
    ) -> KeyRanges:
        """Return the ranges of files, which are given as in `DeltaLog.files`.

        `column` returns the name that a column has in the table. Files that overlap, or share a
        partition, are one range. Files of other writers without a partition count only if the
        result must be `is_whole`.
        """
        partitions = _text(actions, f"partition.{KEY_RANGE}")
        if is_whole:
            partitions = pc.fill_null(partitions, "")
        known = (*_bounds(actions, column), _text(actions, f"min.{column('token')}"))
        sizes = actions["size_bytes"], actions["num_records"]
        arrays = [*known, *sizes, partitions, _text(actions, "path")]
        names = ["first", "last", "several", "token", "size", "rows", "partition", "path"]
        rows = pa.table(arrays, names).filter(pc.is_valid(partitions)).sort_by("first")
        files = rows.drop_columns("several").to_pydict()
        first, last, partition = (files[name] for name in ("first", "last", "partition"))
        for index in pc.indices_nonzero(rows["several"][:-1]).to_pylist():
            if partition[index] != partition[index + 1]:
                last[index] = _end(last[index], first[index + 1])
        ends: dict[str, str] = {}  # of partitions
        for name, end in zip(partition, last, strict=True):
            if end > ends.get(name, ""):
                ends[name] = end
        files["last"] = [ends[name] for name in partition]
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
        upper = self._lower(index + 1) if index + 1 < len(self) else None
        names = ("partition", "path", "size", "rows")
        partitions, paths, sizes, rows = (tuple(self._of_range(index, name)) for name in names)
        count = None if None in rows else sum(rows)
        return KeyRange(lower, upper, last, partitions, paths, sum(sizes), count)

    def files(self) -> list[tuple[str, str, str]]:
        """Return for each file its first and its last possible place, and its path."""
        columns = (self._files[name] for name in ("first", "last", "path"))
        return [*zip(*columns, strict=True)]

    def index(self, place: str) -> int:
        """Return the index of the range that a place belongs to."""
        index = max(0, bisect_right(self._first, place) - 1)
        is_in_next = index + 1 < len(self) and self._lower(index + 1) <= place
        return index + is_in_next

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
        return KeyRanges(self._files, [e for n, e in enumerate(self._ranges) if n not in indexes])

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

    A change belongs to the range with its place. A change after the last place of a large range
    goes to a new file. A range with many changes is divided. `places` reads the places of a group,
    and is called only for a group that spans several ranges.

    For example, files with the places b to f, k to p and n to t are two ranges, because the last
    two files overlap: one up to k, and one from k on. Changes at c and m need a merge of each. A
    change at z needs the second one as well, or, if that range is large, a merge of the places
    after t, which has no files.
    """

    def upper_of(index: int) -> str | None:
        return ranges[index].upper

    spanned = (_indexes(group, ranges.index, upper_of, places) for group in changes)
    indexes = {index for part in spanned for index in part}
    by_lower: dict[str, Merge] = {}
    for base in (ranges[index] for index in sorted(indexes)):
        by_lower[base.lower] = Merge(base.lower, base.upper, base)
        if base.size >= FILE_BYTES // 2 and not base.last.endswith(LAST):  # it is exact
            after = base.last + _END
            by_lower.setdefault(after, Merge(after, base.upper, KeyRange()))
    _divide(by_lower, changes)
    lowers = sorted(by_lower)
    merges = [by_lower[lower] for lower in lowers]
    uppers = [*lowers[1:], *([None] if lowers else [])]
    for merge, upper in zip(merges, uppers, strict=True):
        ends = [end for end in (upper, merge.upper) if end is not None]
        merge.upper = min(ends, default=None)

    def index_of(place: str) -> int:
        return bisect_right(lowers, place) - 1

    for group in changes:
        for index in _indexes(group, index_of, uppers.__getitem__, places):
            merges[index].changes.append(group)
    written = {merge.base.lower for merge in merges if merge.base.paths and merge.changes}
    return [e for e in merges if e.changes or (e.base.paths and e.base.lower in written)]


def merges_of_rest(ranges: KeyRanges, merges: Iterable[Merge]) -> list[Merge]:
    """Return merges without changes of all files that the given merges do not write again."""
    written = {merge.base.lower for merge in merges if merge.base.paths}
    every = (ranges[index] for index in range(len(ranges)))
    rest = (base for base in every if base.paths and base.lower not in written)
    return [Merge(base.lower, base.upper, base) for base in rest]


def _divide(merges: dict[str, Merge], changes: Iterable[ChangeGroup]) -> None:
    """Add merges where the changes of one, which `merges` has by its `lower`, are too many."""
    sizes: dict[str, int] = {}
    lowers = sorted(merges)
    for group in sorted(changes, key=attrgetter("first")):
        first = _shortened(group.first)
        lower = lowers[bisect_right(lowers, first) - 1]
        size = sizes.get(lower, 0)
        if size and size + group.size > _MERGE_BYTES and first not in merges:
            merges[first] = replace(merges[lower], lower=first, changes=[])
            size = 0
        sizes[lower] = size + group.size


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
        index = index_of(ordered[start])
        indexes.append(index)
        upper = upper_of(index)
        start = len(ordered) if upper is None else bisect_left(ordered, upper, start)
    return indexes


def with_keys(part: PartFile, column: str, end: str, first: str, last: str) -> PartFile:
    """Return a file whose statistics have the keys of its first and last place.

    Parquet has no statistics of a row group with texts above 4 KiB at its ends. Long keys are cut,
    so that a commit stays small. A least key of _KEY_CHARACTERS may be below the rows before the
    file, which end at the place `end`; a shorter one is not.
    """
    if parents_of(first) != parents_of(last):
        return part
    stats = part["stats"]
    least, greatest = (place.rpartition("\0")[2] for place in (first, last))
    is_exact = _shortened(first) > end
    stats["minValues"][column] = least[: _KEY_CHARACTERS - 1 if is_exact else _KEY_CHARACTERS]
    cut = greatest[:_KEY_CHARACTERS]
    stats["maxValues"][column] = cut if cut == greatest else cut + LAST
    return part


def _shortened(place: str) -> str:
    """Return the longest place, up to this one, whose key has less than _KEY_CHARACTERS."""
    names, separator, key = place.rpartition("\0")
    return names + separator + key[: _KEY_CHARACTERS - 1]


def parents_of(place: str) -> tuple[str, str]:
    """Return the places at which the database and the collection of a place begin."""
    parts = place.split("\0")
    return f"{parts[0]}\0", "\0".join([*parts[:2], ""])


def _end(last: str, begin: str) -> str:
    """Return the last place of a file of several collections, before a file that begins at `begin`.

    If it ends within one of them, or within a database, its statistics reach to the end of that,
    but its rows do not: the next file has only the rest of it (`_RangeFiles`). So the rows are
    before the first place of the next one. Where long keys that begin alike hide that place
    (`with_keys`), the two files remain one range.
    """
    parent, key = last.removesuffix(LAST), begin.rpartition("\0")[2]
    overlaps = begin <= last and begin.startswith(parent) and begin != parent
    return last_before(begin) if overlaps and len(key) < _KEY_CHARACTERS else last


def last_before(place: str) -> str:
    """Return the last place before another one."""
    head, code = place[:-1], ord(place[-1])
    if not code:
        return head
    return f"{head}{chr(_LAST_BEFORE_SURROGATES if code == _AFTER_SURROGATES else code - 1)}{LAST}"


def _bounds(actions: pa.Table, column: Callable[[str], str]) -> tuple[pa.Array, ...]:
    """Return a place at or before the rows of each file, and one at or after them.

    The third array says which files are known to have several collections. Statistics have the
    bounds of single columns. The bounds of keys are those of places only if all rows are of one
    collection.
    """
    names = [column(name) for name in KEY_COLUMNS]
    least, greatest = ([_text(actions, f"{m}.{n}") for n in names] for m in ("min", "max"))
    of_database = pc.equal(least[0], greatest[0])
    of_collection = pc.and_(of_database, pc.equal(least[1], greatest[1]))

    def places(values: Sequence[pa.Array], rest: Any, default: str) -> pa.Array:
        by_collection = pc.binary_join_element_wise(*values, "\0")
        by_collection = pc.if_else(of_collection, by_collection, _NO_TEXT)
        rest = pc.if_else(pc.is_valid(by_collection), "", rest)  # which the others get
        by_database = pc.binary_join_element_wise(*values[:2], rest, "\0")
        by_database = pc.if_else(of_database, by_database, _NO_TEXT)
        by_name = pc.binary_join_element_wise(values[0], rest, "\0")
        return pc.coalesce(by_collection, by_database, by_name, default)

    several = pc.fill_null(pc.invert(of_collection), fill_value=False)
    return places(least, "", ""), places(greatest, LAST, LAST), several


_NO_TEXT = pa.scalar(None, pa.string())


def _text(actions: pa.Table, name: str) -> pa.Array:
    """Return a column of texts; nulls if the log lacks it."""
    if name not in actions.column_names:
        return pa.nulls(actions.num_rows, pa.string())
    column: Any = actions[name].combine_chunks().cast(pa.string())
    return column
