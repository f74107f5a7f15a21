"""The ranges of keys into which a current table is divided: each is a partition, with one file.

Rows are ordered by database, collection and key. A place is these three as one string, which sorts
alike: names and keys, which are JSON, have no zero character.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

KEY_COLUMNS = ("database", "collection", "key")
SPLIT_BYTES = 128 * 1024 * 1024
"""The size at which a file is divided, into files of at least half of it."""
_END = "\0"  # of the smallest string above another
# Bytes of staged changes for one task.
_TASK_BYTES = 64 * 1024 * 1024


def places_of(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """Return the places of rows with KEY_COLUMNS."""
    found = pc.binary_join_element_wise(*(rows[name] for name in KEY_COLUMNS), "\0")
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


@dataclass(frozen=True)
class KeyRange:
    """A file of the table: the name of its partition, and its first and its last place."""

    AS_LIST: ClassVar = True
    name: str
    first: str
    last: str


@dataclass(frozen=True)
class ChangeGroup:
    """A row group of a file of staged changes, with its first and last place."""

    path: str
    number: int
    first: str
    last: str
    size: int


@dataclass
class Section:
    """The places from `lower` up to `upper` (None: all), and the changes to them.

    `base` is the range whose rows lie in the section; None for new ones only.
    """

    lower: str
    upper: str | None
    base: KeyRange | None
    changes: list[ChangeGroup] = field(default_factory=list)


def ranges_after(
    ranges: Iterable[KeyRange], names: Collection[str], new: Iterable[KeyRange]
) -> tuple[KeyRange, ...]:
    """Return the ranges with others instead of those that are named."""
    kept = [each for each in ranges if each.name not in names]
    return tuple(sorted([*kept, *new], key=lambda each: each.first))


def sections_of(
    ranges: Sequence[KeyRange],
    changes: Sequence[ChangeGroup],
    sizes: Mapping[str, int],
    places: Callable[[ChangeGroup], Sequence[str]],
) -> list[Section]:
    """Return the sections that must be written again, each by one task.

    A change belongs to the range that begins at or before its place, and one behind the last
    place of a large range to a new range. Many changes divide a range.

    Args:
        ranges: of the version, in order, without overlaps.
        sizes: bytes of the ranges' files, by name.
        places: reads the places of a group; only called where a group spans several sections.
    """
    bounds: dict[str, KeyRange | None] = {"": None}
    for number, each in enumerate(ranges):
        bounds[each.first if number else ""] = each
        if sizes.get(each.name, 0) >= SPLIT_BYTES // 2:
            bounds[each.last + _END] = None
    _divide(bounds, changes)
    lowers = sorted(bounds)
    uppers: list[Any] = [*lowers[1:], None]
    found = [
        Section(lower, upper, bounds[lower]) for lower, upper in zip(lowers, uppers, strict=True)
    ]
    for group in changes:
        for index in _indexes(group, lowers, places):
            found[index].changes.append(group)
    touched = {each.base.name for each in found if each.base and each.changes}
    return [
        each
        for each in found
        if each.changes or (each.base is not None and each.base.name in touched)
    ]


def _divide(bounds: dict[str, KeyRange | None], changes: Iterable[ChangeGroup]) -> None:
    """Add bounds where the changes of a section are too many for one task."""
    sizes: dict[str, int] = {}
    lowers = sorted(bounds)
    for group in sorted(changes, key=lambda each: each.first):
        lower = lowers[bisect_right(lowers, group.first) - 1]
        size = sizes.get(lower, 0)
        if size and size + group.size > _TASK_BYTES and group.first not in bounds:
            bounds[group.first] = bounds[lower]
            size = 0
        sizes[lower] = size + group.size


def _indexes(
    group: ChangeGroup, lowers: Sequence[str], places: Callable[[ChangeGroup], Sequence[str]]
) -> Iterable[int]:
    """Return the indexes of the sections in which a group has places."""
    first, last = (bisect_right(lowers, place) - 1 for place in (group.first, group.last))
    if last - first < 2:
        return range(first, last + 1)
    found, found_places, at = [], places(group), 0
    while at < len(found_places):
        index = bisect_right(lowers, found_places[at]) - 1
        found.append(index)
        end = len(found_places)
        at = end if index + 1 == len(lowers) else bisect_left(found_places, lowers[index + 1], at)
    return found
