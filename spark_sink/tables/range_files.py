"""The files of a current table, and how Delta's log tells which places they have.

Rows are in the order of places, and each partition of the table is a range of places with one file.
The log has the least and the greatest value of each column of a file. They are the file's first and
last place if its rows are of one collection, and otherwise say little: those of a file with
shop.orders 7 and shop.users 3 have the keys 3 and 7. So `RangeFiles` writes files by two rules,
from which `bounds_of` finds the places:

- A file that begins within a collection ends where that ends, and one that begins within a database
  ends where that ends. So a file of several collections, or databases, begins with a whole one.
- The statistics of a file of one collection have its first and its last key. Long ones are cut.

For example, a table with the keys 1 to 9 in shop.orders, 1 to 3 in shop.users and 1 in stock.items,
whose files end after five rows, has the files orders 1 to 5; orders 6 to 9, as it begins within
orders; users 1 to 3, as it begins within shop; and items 1.

Files of other writers may follow no rule. Those that may overlap are one range until a batch writes
them again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from hashlib import blake2b
from operator import xor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.tables.parquet_parts import WITHOUT_DICTIONARY, PartFile, Parts
from spark_sink.tables.places import (
    KEY_CHARACTERS,
    KEY_COLUMNS,
    KEY_RANGE,
    LAST,
    cut_place,
    last_before,
    parents_of,
)
from spark_sink.tables.table_form import TableForm


def partitions_of(actions: pa.Table) -> set[str]:
    """Return the partitions of files, which are given as in `DeltaLog.files`."""
    return {name or "" for name in _text(actions, f"partition.{KEY_RANGE}").to_pylist()}


def partition_digest(partitions: Collection[str]) -> int:
    """Return a number for a set of partitions: the XOR of a hash of each."""
    hashes = (blake2b(name.encode(), digest_size=6).digest() for name in partitions)
    return reduce(xor, (int.from_bytes(hashed) for hashed in hashes), 0)


class RangeFiles:
    """Writes ordered rows to files, each of which is a range of its own.

    Args:
        address: the table's.
        form: the columns of the table.
        lower: a place at or before the rows, and after those of other files.
        limit: the bytes after which a file ends.
    """

    def __init__(self, address: str, form: TableForm, lower: str, limit: int) -> None:
        self._form, self._limit = form, limit
        self.files = Parts(
            address,
            form.file_schema,
            (KEY_RANGE,),
            statistics_columns=form.statistics_columns,
            unique=tuple(map(form.column, WITHOUT_DICTIONARY)),
            summed=False,
        )
        self._range = ""  # of the file that is being written, if there is one
        self._first = self._last = ""
        self._lower, self._end_before = lower, LAST
        self._parts: list[PartFile] = []

    def add(self, rows: pa.Table) -> None:
        """Write the next rows."""
        while rows.num_rows:
            first, last = self._form.places_of(rows.take([0, rows.num_rows - 1])).to_pylist()
            if not self._range or first >= self._end_before:
                self._end()
                self._begin(first)
            count = rows.num_rows
            if last >= self._end_before:
                places = self._form.places_of(rows)
                count = pc.sum(pc.less(places, self._end_before)).as_py()
                last = places[count - 1].as_py()
            self._last = last
            self._write(rows.slice(0, count))
            rows = rows.slice(count)

    def close(self) -> list[PartFile]:
        """Complete the files, and return them."""
        self._end()
        return self._parts

    def _begin(self, first: str) -> None:
        self._range, self._first = uuid.uuid4().hex[:12], first
        within = (parent for parent in reversed(parents_of(first)) if parent < self._lower)
        self._end_before = next(within, "") + LAST

    def _write(self, rows: pa.Table) -> None:
        name = pa.repeat(pa.scalar(self._range), rows.num_rows)
        self.files.add(rows.append_column(KEY_RANGE, name))
        if self.files.size >= self._limit:
            self._end()

    def _end(self) -> None:
        if self._range:
            key = self._form.column("key")
            places = self._lower, self._first, self._last
            self._parts += (_with_keys(part, key, *places) for part in self.files.close())
            self._range, self._lower = "", self._last + "\0"


def _with_keys(part: PartFile, column: str, lower: str, first: str, last: str) -> PartFile:
    """Return a file whose statistics have the keys of its first and last place.

    Parquet has no statistics of a row group with texts above 4 KiB at its ends. Long keys are cut,
    so that a commit stays small. A least key of KEY_CHARACTERS may be below `lower`, before which
    are the rows of other files; a shorter one is not.
    """
    if parents_of(first) != parents_of(last):
        return part
    stats = part.stats
    least, greatest = (place.rpartition("\0")[2] for place in (first, last))
    is_exact = cut_place(first) >= lower
    stats["minValues"][column] = least[: KEY_CHARACTERS - 1 if is_exact else KEY_CHARACTERS]
    cut = greatest[:KEY_CHARACTERS]
    stats["maxValues"][column] = cut if cut == greatest else cut + LAST
    return part


def bounds_of(
    actions: pa.Table, column: Callable[[str], str], *, with_others: bool
) -> dict[str, list[Any]]:
    """Return columns of files, which are given as in `DeltaLog.files`, in the order of `first`.

    These are `first` and `last`, the first and the last possible place of their rows, and `token`,
    the least one, `size`, `rows`, `partition` and `path`. See `KeyRanges.of` for the arguments.
    """
    partitions = _text(actions, f"partition.{KEY_RANGE}")
    if with_others:
        partitions = pc.fill_null(partitions, "")
    known = (*_bounds(actions, column), _text(actions, f"min.{column('token')}"))
    sizes = actions["size_bytes"], actions["num_records"]
    arrays = [*known, *sizes, partitions, _text(actions, "path")]
    names = ["first", "last", "several", "token", "size", "rows", "partition", "path"]
    rows = pa.table(arrays, names).filter(pc.is_valid(partitions)).sort_by("first")
    files: dict[str, list[Any]] = rows.drop_columns("several").to_pydict()
    first, last, partition = (files[name] for name in ("first", "last", "partition"))
    for index in pc.indices_nonzero(rows["several"][:-1]).to_pylist():
        if partition[index] != partition[index + 1]:
            last[index] = _end(last[index], first[index + 1])
    ends: dict[str, str] = {}  # of partitions
    for name, end in zip(partition, last, strict=True):
        if end > ends.get(name, ""):
            ends[name] = end
    files["last"] = [ends[name] for name in partition]
    return files


def _end(last: str, begin: str) -> str:
    """Return the last place of a file of several collections, before a file that begins at `begin`.

    If it ends within one of them, or within a database, its statistics reach to the end of that,
    but its rows do not: the next file has only the rest of it. So the rows are before the first
    place of the next one. Where long keys that begin alike hide that place (`_with_keys`), the two
    files remain one range.
    """
    parent, key = last.removesuffix(LAST), begin.rpartition("\0")[2]
    overlaps = begin <= last and begin.startswith(parent) and begin != parent
    return last_before(begin) if overlaps and len(key) < KEY_CHARACTERS else last


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
