"""Tables of the former forms, which had no Delta log: they are read once, and rewritten.

A current table had a log of its own (`versions/NUMBER.json`, which named files in `data`), tables
of batches were folders `…/batch=N`, with notes of unfinished compactions in `_compact`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.folders import Folder, absolute
from spark_sink.rows.arrow_types import arrow_schema
from spark_sink.tables.append_table import AppendTable
from spark_sink.tables.delta_log import Batch
from spark_sink.tables.parquet_parts import BATCH, PartFile, Parts
from spark_sink.tables.tasks import REPORT, report_batch, reports_in

_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"
_NUMBERED = re.compile(rf"{BATCH}=(\d+)")
_TYPES = {BATCH: "long", "date": "date"}


def announce(address: str) -> None:
    """Tell the user that a table is being rewritten."""
    print(f"the table at {address} is rewritten as a Delta table", file=sys.stderr)  # noqa: T201


class FormerFolder(Folder):
    """The folder of such a table."""

    def version(self) -> Mapping[str, Any] | None:
        """Return the newest version of a current table; None if there is none."""
        notes = self._notes("versions")
        return notes[max(notes)] if notes else None

    @property
    def is_former(self) -> bool:
        """Whether it has a table of the former form."""
        return self.version() is not None or bool(self.batches())

    def batches(self) -> dict[str, int]:
        """Return the folders of batches with their numbers."""
        found = {}
        for each in self.listed("", deep=True):
            match = _NUMBERED.fullmatch(each.base_name)
            if match and each.type == fs.FileType.Directory:
                found[each.path] = int(match[1])
        return found

    def finish_compactions(self) -> None:
        """Exchange the files of batches that a compaction has not exchanged completely."""
        for path, note in self._notes("_compact").items():
            if self.has(note["data"], fs.FileType.Directory):
                self.remove(*note["from"])
                self.move(note["data"], note["to"])
            self.remove(path)

    def _notes(self, folder: str) -> dict[str, dict[str, Any]]:
        """Return the JSON documents in a folder by their paths."""
        names = [each.path for each in self.listed(folder) if each.extension == "json"]
        shown = [each for each in names if not each.rpartition("/")[2].startswith((".", "_"))]
        return {path: json.loads(self.text(path) or "{}") for path in shown}


@dataclass(frozen=True)
class _Written:
    """A report of the files that a task has written."""

    parts: list[PartFile]


@dataclass(frozen=True)
class _Write:
    """Writes rows to files of a table, which its report names: a function for `mapInArrow`."""

    address: str
    schema: pa.Schema
    partitions: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Parts(self.address, self.schema, self.partitions) as parts:
            for batch in batches:
                parts.add(pa.Table.from_batches([batch]))
            written = parts.close()
        yield report_batch([_Written(written)])


def rewrite_former_batches(
    spark: SparkSession, address: str, partitions: Sequence[str], batch: Batch
) -> None:
    """Rewrite a table of batches, if it has the former form, as if its rows were the batch's.

    The rows of a batch after that one, the last committed one, are left out, which the query writes
    again. If this is interrupted after its commit, the former files stay, as files of no table.
    Raises StreamError.
    """
    table, former = AppendTable(address, partitions), FormerFolder(address)
    if table.log.exists or not former.batches():
        return
    announce(address)
    former.finish_compactions()
    base = absolute(address)
    chosen = [f"{base}/{each}" for each, n in former.batches().items() if n <= batch.number]
    if chosen:
        inference = spark.conf.get(_INFERENCE) or "true"
        spark.conf.set(_INFERENCE, "false")  # a database may have a number as its name
        try:
            rows = spark.read.options(basePath=base, mergeSchema="true").parquet(*chosen)
        finally:
            spark.conf.set(_INFERENCE, inference)
        for name in set(rows.columns) & _TYPES.keys():
            rows = rows.withColumn(name, F.col(name).cast(_TYPES[name]))
        schema = arrow_schema(rows.schema)
        written = rows.mapInArrow(_Write(base, schema, tuple(partitions)), REPORT)
        parts = [part for report in reports_in(_Written, written) for part in report.parts]
        if parts:
            table.commit(parts, schema, batch)
    former.remove(*former.batches(), "_compact")
