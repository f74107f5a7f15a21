"""A Delta table to which each batch of a query is appended once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

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
from spark_sink.tables.tasks import Tell, scans_of, tell_nobody

CHECKSUM = "checksum"
"""The field of a table's state with the checksum of its rows."""
# The most files, and bytes, that one commit of a compaction replaces.
_PORTION_FILES, _PORTION_BYTES = 1_000, 8 * FILE_BYTES


class AppendTable:
    """The table at an address, a path or a URI, with the partition columns of a new one.

    `epoch` is that of the start of a job that writes to it.
    """

    def __init__(self, address: str, partitions: Sequence[str] = (), *, epoch: int = 0) -> None:
        self.log = DeltaLog(address, partitions, epoch=epoch)
        """The commits of the table."""

    @property
    def newest(self) -> int:
        """The number of the newest batch that has rows here; -1 if there is none."""
        return int(self.log.position().get("written", {}).get(self.log.name, -1))

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

    def compact(self, tell: Tell = tell_nobody) -> tuple[int, int]:
        """Replace small files by large ones with the same rows; return their numbers.

        The numbers are those of all files, before and after. A portion is committed at a time, and
        told. Others may write to the table meanwhile; what they replace is left out. Raises
        StreamError.
        """
        self.log.reload()
        files = self.log.actions()
        small, done = _small(files), 0
        for portion in _portions(small):
            self._compact(portion)
            done += len(portion)
            tell(f"small files of {self.log.name} compacted", done, len(small))
        return len(files), self.log.files().num_rows

    def _compact(self, files: Sequence[Mapping[str, Any]]) -> None:
        while small := _small(files):
            with self.log.failures():
                written = self._rewritten(small)
            if self.log.exchange(small, written):
                return
            remove_files(self.log.address, (each["path"] for each in written))
            left = self.log.paths()  # which has some less each time
            files = [each for each in small if each["path"] in left]

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


def _portions(files: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Divide files into portions that are written, and lost by a failure, together."""
    start = size = 0
    for end, each in enumerate(files):
        if end - start >= _PORTION_FILES or size >= _PORTION_BYTES:
            yield files[start:end]
            start, size = end, 0
        size += each["size_bytes"]
    if files:
        yield files[start:]


def stored_checksum(log: DeltaLog) -> Checksum:
    """Return the checksum of the rows that a job has written to a table, as its state says."""
    document = log.position().get(CHECKSUM)
    return from_document(Checksum, document) if document else NO_ROWS
