"""Reads the rows of some files of a table, through pyarrow.

So neither Delta's extension of Spark nor Hadoop's client is needed, and object stores are read with
the same credentials as they are written. Executors import this module, which requires pyarrow only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_sink.folders import open_folder

_ROWS = 10_000  # that are in memory
_FORMAT = ds.ParquetFileFormat()
_VIEWS = {pa.string_view(), pa.binary_view()}
Chosen = Sequence[tuple[str, str, Any] | pc.Expression]
"""Conditions on rows, all of which hold. By those such as ("token", "<=", "82"), with one of the
operators ==, <, <=, > and >=, whole files are left out, as the log's statistics tell them."""


@dataclass(frozen=True)
class TableScan:
    """Reads some files of a table.

    Args:
        address: the table's, a path or a URI.
        schema: of the table; a file may lack some columns, and fields of structs.
        columns: those to return.
        files: their paths, and the values of their partition columns.
        chosen: a condition on rows; None for all of them.
    """

    address: str
    schema: pa.Schema
    columns: Sequence[str]
    files: Sequence[tuple[str, Mapping[str, Any]]]
    chosen: pc.Expression | None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Return the rows, of one file after the other. Raises OSError."""
        for file in self._fragments():
            if self.chosen is None or not _has_views(file):
                yield from self._batches(file, self.columns, self.chosen)
                continue
            for batch in self._batches(file, self.schema.names, None):  # as texts and bytes
                rows = pa.Table.from_batches([batch]).filter(self.chosen)
                yield from rows.select(self.columns).to_batches()

    def _batches(
        self, file: ds.Fragment, columns: Sequence[str], chosen: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        yield from file.scanner(
            schema=self.schema,
            columns=[*columns],
            filter=chosen,
            batch_size=_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        ).to_batches()

    def together(self) -> Iterator[pa.RecordBatch]:
        """Return the rows; several files are read at a time. Raises OSError."""
        files = [*self._fragments()]
        if self.chosen is not None and any(map(_has_views, files)):
            yield from self
        else:
            dataset = ds.FileSystemDataset(files, self.schema, _FORMAT)
            yield from dataset.scanner(columns=[*self.columns], filter=self.chosen).to_batches()

    def _fragments(self) -> Iterator[ds.ParquetFileFragment]:
        opened, folder = open_folder(self.address)
        for path, partition in self.files:
            yield _FORMAT.make_fragment(f"{folder}/{path}", opened, _condition(partition))


def _has_views(file: ds.Fragment) -> bool:
    """Return whether a file has types as delta-rs writes them, which pyarrow cannot compare."""
    return bool(_VIEWS & {each.type for each in file.physical_schema})


def _condition(partition: Mapping[str, Any]) -> pc.Expression:
    """Return the values of the partition columns of a file as a condition."""
    conditions = [
        pc.field(name).is_null() if value is None else pc.field(name) == value
        for name, value in partition.items()
    ]
    return reduce(and_, conditions, pc.scalar(True))
