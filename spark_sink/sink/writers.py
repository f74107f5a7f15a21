"""The writers that Spark calls, of streams and of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_sink.errors import OptionError, without_traceback
from spark_sink.sink.changes import Change, change_of_event, change_of_row, write_batches
from spark_sink.sink.document_writer import DocumentWriter
from spark_sink.sink.write_options import WriteOptions

# Changes that are written together.
_BATCH_SIZE = 1000


@dataclass
class Written(WriterCommitMessage):
    """What a task has written: the number of rows with a change."""

    changes: int


class RowWriter:
    """Writes rows of a schema in a task. Raises OptionError if they cannot be written."""

    def __init__(self, schema: StructType, options: WriteOptions) -> None:
        self._options = options
        names = schema.fieldNames()
        self._has_events = "event" in names
        missing = [name for name in self._needed() if name not in names]
        if missing:
            raise OptionError(
                f"the sink requires the column {missing[0]}: write rows of the source with 'token' "
                "and 'event', or rows with a 'token' that grows with each change of a document, "
                f"and {', '.join(options.keys)}"
            )

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task. Raises StreamError."""
        writer = DocumentWriter(self._options)
        total = 0
        try:
            for batch in write_batches(self._changes(batches), _BATCH_SIZE):
                total += batch.size
                writer.write(batch)
        finally:
            writer.close()
        return Written(total)

    def _changes(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Change]:
        for batch in batches:
            wanted = self._needed() if self._has_events else batch.schema.names
            for row in batch.select(wanted).to_pylist():
                change = self._change(row)
                if change is not None:
                    yield change

    def _change(self, row: dict[str, Any]) -> Change | None:
        of = change_of_event if self._has_events else change_of_row
        return of(row, self._options)

    def _needed(self) -> Sequence[str]:
        return ["token", "event"] if self._has_events else ["token", *self._options.keys]


class _Writer:
    """Writes rows; those that are written again change nothing."""

    def __init__(self, rows: RowWriter) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task. Raises StreamError."""
        with without_traceback():
            return self._rows.write(iterator)


class MergerouterStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes micro-batches."""


class MergerouterBatchWriter(_Writer, DataSourceArrowWriter):
    """Writes a batch (`df.write`)."""
