"""A Delta table to which each batch of a query is appended once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_sink.errors import StreamError
from spark_sink.events.documents import from_document, to_document
from spark_sink.folders import remove_files
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.log_state import Batch
from spark_sink.tables.parquet_parts import (
    BATCH,
    FILE_BYTES,
    PartFile,
    Parts,
    checksum_of,
    partition_in,
)
from spark_sink.tables.tasks import scans_of

CHECKSUM = "checksum"
"""The field of a table's state with the checksum of its rows."""
_ATTEMPTS = 10
"""How often a table is compacted if others replace its files meanwhile."""


class AppendTable:
    """The table at an address, a path or a URI, with the partition columns of a new one.

    `epoch` is that of the start of a job that writes to it.
    """

    def __init__(self, address: str, partitions: Sequence[str] = (), *, epoch: int = 0) -> None:
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

    def write_rows(self, rows: pa.Table, batch: Batch) -> None:
        """Append rows that the driver has, with the batch's number, as `commit`."""
        if not rows.num_rows:
            return
        numbers = pa.repeat(pa.scalar(batch.number, pa.int64()), rows.num_rows)
        numbered = rows.append_column(BATCH, numbers)
        with Parts(self.log.address, numbered.schema, self.log.partitions) as parts:
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

    def compact(self) -> tuple[int, int]:
        """Replace small files by large ones with the same rows; return their numbers.

        The numbers are those of all files, before and after. Others may write to the table
        meanwhile; the compaction begins again if they replace some of its files. Raises
        StreamError after several such attempts.
        """
        for _ in range(_ATTEMPTS):
            self.log.reload()
            files = self.log.actions()
            small = _small(files)
            if not small:
                return len(files), len(files)
            with self.log.failures():
                written = self._rewritten(small)
            if self.log.exchange([each["path"] for each in small], written):
                return len(files), self.log.files().num_rows
            remove_files(self.log.address, (each["path"] for each in written))
        raise StreamError(
            f"others have replaced files of the table at {self.log.address} {_ATTEMPTS} times "
            "while they were being compacted: compact them again later; nothing is lost"
        )

    def _rewritten(self, files: Sequence[Mapping[str, Any]]) -> list[PartFile]:
        """Write the rows of files again. Raises OSError."""
        log, schema = self.log, arrow_schema(StructType.fromJson(self.log.schema))
        options: dict[str, Any] = {"compared": log.compared, "summed": False}
        with Parts(log.address, schema, log.partitions, **options) as parts:
            for scan in scans_of(log, schema.names, files=files):
                for rows in scan:
                    parts.add(pa.Table.from_batches([rows]))
            return parts.close()


def _small(files: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the small files of partitions with several of them, in the order of their rows."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for each in sorted(files, key=itemgetter("modification_time")):
        if each["size_bytes"] < FILE_BYTES // 2:
            found.setdefault(tuple(partition_in(each).values()), []).append(each)
    return [each for alike in found.values() if len(alike) > 1 for each in alike]


def stored_checksum(log: DeltaLog) -> Checksum:
    """Return the checksum of the rows that a job has written to a table, as its state says."""
    document = log.position().get(CHECKSUM)
    return from_document(Checksum, document) if document else NO_ROWS
