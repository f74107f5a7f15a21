"""A Delta table to which each batch of a query is appended once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from spark_sink.events.documents import from_document, to_document
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.log_state import Batch
from spark_sink.tables.parquet_parts import BATCH, Parts, checksum_of
from spark_sink.tables.tasks import read_rows

CHECKSUM = "checksum"
"""The field of a table's state with the checksum of its rows."""


class AppendTable:
    """The table at an address, a path or a URI, with the partition columns of a new one.

    `epoch` is that of the start of a job that writes to it.
    """

    def __init__(self, address: str, partitions: Sequence[str] = (), *, epoch: int = 0) -> None:
        self._partitions = tuple(partitions)
        self.log = DeltaLog(address, partitions, epoch=epoch)
        """The commits of the table."""

    @property
    def name(self) -> str:
        """The last part of its address."""
        return self.log.address.rpartition("/")[2]

    @property
    def newest(self) -> int:
        """The number of the newest batch that has rows here; -1 if there is none."""
        return int(self.log.position().get("written", {}).get(self.name, -1))

    def read(
        self,
        spark: SparkSession,
        columns: Sequence[str] | None = None,
        chosen: pc.Expression | None = None,
    ) -> DataFrame:
        """Return columns, without some all, of the rows of a table that exists.

        `chosen` is a condition on rows.
        """
        return read_rows(spark, self.log, columns, chosen)

    def write_rows(self, rows: pa.Table, batch: Batch) -> None:
        """Append rows that the driver has, with the batch's number, as `commit`."""
        if not rows.num_rows:
            return
        self.log.reload()
        if self.log.has(batch):
            return
        numbers = pa.repeat(pa.scalar(batch.number, pa.int64()), rows.num_rows)
        numbered = rows.append_column(BATCH, numbers)
        with Parts(self.log.address, numbered.schema, self._partitions) as parts:
            parts.add(numbered)
            written = parts.close()
        self.commit(written, numbered.schema, batch)

    def commit(self, parts: Sequence[Mapping[str, Any]], schema: pa.Schema, batch: Batch) -> None:
        """Commit the files of a batch, unless the table has the batch already. Raises StreamError.

        An interrupted attempt may have committed them here, and not yet in another table.
        """
        self.log.reload()
        if not self.log.has(batch):
            checksum = stored_checksum(self.log) + checksum_of(parts)
            self.log.append(parts, schema, batch, {CHECKSUM: to_document(checksum)})


def stored_checksum(log: DeltaLog) -> Checksum:
    """Return the checksum of the rows that a job has written to a table, as its state says."""
    document = log.position().get(CHECKSUM)
    return from_document(Checksum, document) if document else NO_ROWS
