"""Rows of one version of a current table, read by their places through pyarrow, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_sink.folders import open_folder
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.fold import DELETED
from spark_sink.tables.key_ranges import KEY_COLUMNS, places_of
from spark_sink.tables.table_form import KEY_RANGE, TableForm
from spark_sink.tables.table_state import TableState

PLACE = "place"
"""The column that says where a row lies in the order of the table."""
_COLUMNS = (*KEY_COLUMNS, "token", "document")


class VersionRows:
    """The newest version of the table at an address. Methods raise OSError for deleted files.

    Raises StreamError if the table cannot be read.
    """

    def __init__(self, address: str) -> None:
        log = DeltaLog(address)
        self.number = log.version
        """The number of the version; None if there is no table."""
        self.position: Mapping[str, Any] = log.position() if log.exists else {}
        """What its commit says."""
        ranges = TableState.from_document(self.position).ranges.ranges if self.position else ()
        bounds = {each.name: (each.first, each.last) for each in ranges}
        files = [(each[f"partition.{KEY_RANGE}"], each["path"]) for each in log.actions()]
        found = [(*bounds.get(name, ("", "~")), path) for name, path in files]
        self._paths = sorted(found)
        self._form = TableForm.of(log.schema) if log.exists else TableForm()
        self._files, self._folder = open_folder(address)

    def groups(self, after: str) -> Iterator[pa.Table]:
        """Return the rows behind a place, in order, a row group at a time.

        Columns: KEY_COLUMNS, token, document, PLACE.
        """
        for _, last, path in self._paths:
            if last <= after:
                continue
            with self._files.open_input_file(f"{self._folder}/{path}") as stream:
                file = pq.ParquetFile(stream)
                for number in range(file.num_row_groups):
                    rows = self._read(file, number, _COLUMNS)
                    rows = rows.filter(pc.greater(rows[PLACE], after)).sort_by(PLACE)
                    if rows.num_rows:
                        yield rows

    def find(self, places: Collection[str], *, keys_only: bool = False) -> pa.Table:
        """Return the rows at some places; with `keys_only` their places alone."""
        wanted = pa.array(sorted(places), pa.string())
        columns = KEY_COLUMNS if keys_only else _COLUMNS
        found = []
        for first, last, path in self._paths if places else ():
            if not any(first <= each <= last for each in places):
                continue
            with self._files.open_input_file(f"{self._folder}/{path}") as stream:
                file = pq.ParquetFile(stream)
                for number in range(file.num_row_groups):
                    keys = self._read(file, number, KEY_COLUMNS)
                    chosen = pc.is_in(keys[PLACE], value_set=wanted)
                    if not pc.any(chosen).as_py():
                        continue
                    rows = keys
                    if not keys_only:
                        rows = self._read(file, number, columns)
                    found.append(rows.filter(chosen))
        if found:
            return pa.concat_tables(found)
        return pa.table({name: pa.array([], pa.string()) for name in (*columns, PLACE)})

    def _read(self, file: pq.ParquetFile, number: int, names: Sequence[str]) -> pa.Table:
        """Return columns of a row group, and PLACE, without the rows of deleted documents."""
        marks = [DELETED] if self._form.keeps_deleted else []
        rows = file.read_row_group(number, columns=[*map(self._form.column, names), *marks])
        if marks:
            rows = rows.filter(pc.invert(rows[DELETED]))
        rows = pa.table({name: rows[self._form.column(name)] for name in names})
        return rows.append_column(PLACE, places_of(rows))
