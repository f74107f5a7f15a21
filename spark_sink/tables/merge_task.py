"""Merges staged changes with rows of a current table, in a task.

The rows of a file and the changes are in the order of places, so a row group is merged at a time.
Rows without a change are copied as Arrow and never decoded. Executors import this module
(docs/on-a-cluster.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from spark_sink.errors import StreamError
from spark_sink.folders import Folder
from spark_sink.rows.arrow_types import arrow_schema, filtered, rows_in
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.rows.row_schema import columns
from spark_sink.snapshot.unread import LostDocument
from spark_sink.tables.fold import TABLE, Fold, with_key_columns, without_superseded
from spark_sink.tables.key_ranges import Merge
from spark_sink.tables.keyed_rows import kinds_of, order_of, sorted_rows
from spark_sink.tables.parquet_parts import BATCH, FILE_BYTES, PartFile, Parts, numbered
from spark_sink.tables.places import KEY_COLUMNS, places_of
from spark_sink.tables.range_files import RangeFiles
from spark_sink.tables.staged_changes import read_groups
from spark_sink.tables.table_form import FormedRows, TableForm

UNAPPLIED = StructType(
    [
        *(TABLE[name] for name in ("namespace", *KEY_COLUMNS, "token", "clusterTime")),
        *columns(f"problem string, event binary, {BATCH} long"),
    ]
)
"""The columns of a table of events that cannot be applied."""
_NO_PLACES = pa.array([], pa.string())
# Changes that are applied together: more of them cost more memory and CPU.
_CHANGES_PER_STEP = 5_000


class _UnsortedError(Exception):
    """The rows of the files are not in order, because another program has written one of them."""


@dataclass(frozen=True)
class MergeTask:
    """Writes rows again, with the changes to them applied.

    Args:
        address: the table's.
        quarantine: the address of the table for events that cannot be applied, and the number of
            the batch, which these events get; None if they fail.
        merge: the places, the files with their rows, and the groups of changes there.
        fold: applies changes to rows.
        form: the columns of the table.
        again: whether the columns of documents are made again.
    """

    address: str
    quarantine: tuple[str, int] | None
    merge: Merge
    fold: Fold
    form: TableForm
    again: bool = False

    def __call__(self) -> MergeReport:
        """Write the files.

        Raises OSError, and StreamError for an event that cannot be applied without a quarantine.
        """
        formed = FormedRows(self.form)
        try:
            return _Merging(self, formed, self._groups(formed)).report()
        except _UnsortedError:
            formed = FormedRows(self.form)
            rows = pa.concat_tables(rows for rows, _ in self._unordered(formed))
            groups = _newest(rows, self.form.places_of(rows), self.form.column("token"))
            return _Merging(self, formed, [groups]).report()

    def _unordered(self, formed: FormedRows) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Return the rows of the merge, a row group at a time, and their places."""
        files = Folder(self.address).files
        merge, base = self.merge, self.merge.base
        # The first and the last merge of a range keep rows that its statistics do not show.
        lower = "" if merge.lower == base.lower else merge.lower
        upper = None if merge.upper == base.upper else merge.upper
        for path in base.paths:
            with files.open_input_file(path) as stream:
                file = pq.ParquetFile(stream)
                # Columns that are no more count, too, in what the checksum loses.
                names = None if self.again else formed.names(file.schema_arrow.names)
                for number in range(file.num_row_groups):
                    rows = file.read_row_group(number, columns=names, use_threads=False)
                    # Other writers give texts other types of Arrow's.
                    keys = {
                        name: rows[self.form.column(name)].cast(pa.string()) for name in KEY_COLUMNS
                    }
                    places = places_of(pa.table(keys))
                    # A row without a place, of another writer, belongs to the first merge.
                    chosen = pc.fill_null(_between(places, lower, upper), fill_value=not lower)
                    rows = formed.from_file(filtered(rows, chosen), again=self.again)
                    yield rows.combine_chunks(), filtered(places, chosen)

    def _groups(self, formed: FormedRows) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Return the same rows, in order, and their places. Raises _UnsortedError."""
        before = pa.scalar("")
        for rows, places in self._unordered(formed):
            if not len(places):
                continue
            if not _is_ascending(places) or not pc.less(before, places[0]).as_py():
                raise _UnsortedError
            before = places[-1]
            yield rows, places


@dataclass(frozen=True)
class MergeReport:
    """What a MergeTask has written.

    Args:
        parts: files of the table, which replace those of the merge.
        problems: files of the quarantine.
        wanted: the schema that the documents need, if that of the form is too narrow.
        added: what the checksum of the table gains.
        lost: the documents that have left the table because an update does not show them whole.
    """

    parts: list[PartFile]
    problems: list[PartFile]
    wanted: dict[str, Any] | None
    added: Checksum
    lost: list[LostDocument]


class _Merging:
    """Merges groups of rows with the changes to them, and writes what results."""

    def __init__(
        self, task: MergeTask, formed: FormedRows, groups: Iterable[tuple[pa.Table, pa.Array]]
    ) -> None:
        self._task = task
        self._formed = formed
        self._groups = groups
        self._table = RangeFiles(task.address, task.form, task.merge.lower, _limit(task.merge))
        self._lost: list[LostDocument] = []
        address, _ = task.quarantine or (task.address, None)
        self._problems = Parts(address, arrow_schema(UNAPPLIED))
        self._added = NO_ROWS

    def report(self) -> MergeReport:
        """Write all rows. A failure leaves no files."""
        address, merge, start = self._task.address, self._task.merge, 0

        def chosen(rows: pa.Table) -> pa.Table:
            rows = filtered(rows, _between(rows["place"], merge.lower, merge.upper))
            return without_superseded(rows)

        changes = read_groups(address, merge.changes, chosen=chosen)
        order, column = order_of(changes), changes["place"]
        places: list[str] = (column if order is None else column.take(order)).to_pylist()

        def part(start: int, end: int) -> pa.Table:  # a whole copy in order is much memory
            if order is None:
                return changes.slice(start, end - start)
            return changes.take(order[start:end])

        with self._table.files, self._problems:
            for group, keys in chain(self._groups, [(self._formed.none, _NO_PLACES)]):
                end = bisect_right(places, keys[-1].as_py(), start) if len(keys) else len(places)
                while end - start > _CHANGES_PER_STEP:
                    last = places[start + _CHANGES_PER_STEP - 1]
                    until = bisect_right(places, last, start)
                    size = pc.sum(pc.less_equal(keys, last)).as_py() or 0
                    self._apply(group.slice(0, size), keys.slice(0, size), part(start, until))
                    group, keys, start = group.slice(size), keys.slice(size), until
                if end == start:
                    self._table.add(group)
                else:
                    self._apply(group, keys, part(start, end))
                start = end
            parts, problems = self._table.close(), self._problems.close()
        wanted = None if self._formed.wanted is None else self._formed.wanted.jsonValue()
        added = self._added + self._formed.changed
        return MergeReport(parts, problems, wanted, added, self._lost)

    def _apply(self, group: pa.Table, places: pa.Array, changes: pa.Table) -> None:
        """Write a group of rows with the changes to it applied."""
        changed = pc.is_in(places, value_set=pc.unique(changes["place"]))
        base, form = group.filter(changed), self._task.form
        token, key, document = map(form.column, ("token", "documentKey", "document"))
        columns = [places.filter(changed), base[token], base[key], kinds_of(base), base[document]]
        rows = pa.table(columns, schema=changes.schema)
        keyed = sorted_rows(pa.concat_tables([rows, changes])) if base.num_rows else changes
        folded = self._task.fold.of(keyed)
        fits = pc.is_null(folded["problem"])
        new = self._formed_rows(filtered(folded, fits), changes)
        problems = folded.filter(pc.invert(fits))
        for place, token in rows_in(problems.select(["place", "token"])):
            database, collection, key = place.split("\0")
            self._lost += [LostDocument(database, collection, key, token)] if key else []
        self._quarantine(problems)
        self._added += Checksum.of(new) - Checksum.of(base)
        kept = group.filter(pc.invert(changed))
        if kept.num_rows or not _is_ascending(folded["place"]):
            new = pa.concat_tables([kept, new])
            new = new.take(pc.sort_indices(form.places_of(new))).combine_chunks()
        self._table.add(new)

    def _formed_rows(self, folded: pa.Table, changes: pa.Table) -> pa.Table:
        """Return the rows of documents; a document that cannot be read leaves the table."""
        new, problems = self._formed.from_fold(self._task.fold.moved(folded))
        for index, problem in problems.items():
            [row] = folded.slice(index, 1).to_pylist()
            database, collection, key = row["place"].split("\0")
            problem = f"a document of {database}.{collection} cannot be read (key {key}): {problem}"
            of_document = changes.filter(pc.equal(changes["place"], row["place"]))
            event = of_document["payload"][-1].as_py()
            of_event = {**row, "document": event, "problem": problem}
            self._quarantine(pa.Table.from_pylist([of_event], folded.schema))
        return new

    def _quarantine(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if self._task.quarantine is None:
            raise StreamError(f"{rows['problem'][0]}. A job writes it to its table quarantine")
        events = with_key_columns(rows).append_column("event", rows["document"])
        self._problems.add(numbered(events, self._task.quarantine[1]))


def _between(places: Any, lower: str, upper: str | None) -> Any:
    """Return which places are at or above a lower and below an upper one."""
    above = pc.greater_equal(places, lower)
    return above if upper is None else pc.and_(above, pc.less(places, upper))


def _is_ascending(places: Any) -> bool:
    return len(places) < 2 or bool(pc.all(pc.less(places[:-1], places[1:])).as_py())


def _limit(merge: Merge) -> int:
    """Return the bytes after which a file ends, so that no file is much smaller than the others."""
    # `size` counts changes once, but a document is in a row twice: as JSON and as BSON.
    expected = merge.size + sum(group.size for group in merge.changes)
    files = -(-expected // FILE_BYTES)
    return max(FILE_BYTES // 2, expected // files) if files > 1 else FILE_BYTES


def _newest(rows: pa.Table, places: pa.Array, token: str) -> tuple[pa.Table, pa.Array]:
    """Return the newest row of each place, by a column of tokens, in the order of places."""
    keys = pa.table({"place": places, "token": rows[token]})
    order = pc.sort_indices(keys, sort_keys=[("place", "ascending"), ("token", "ascending")])
    places = keys["place"].combine_chunks().take(order)
    is_last = [pc.not_equal(places[:-1], places[1:]), pa.array([True][: len(places)], pa.bool_())]
    chosen = pa.concat_arrays(is_last)
    return rows.take(order).filter(chosen), places.filter(chosen)
