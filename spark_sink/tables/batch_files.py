"""Append-only tables of plain Parquet files whose batches can be written again.

The files of a batch lie in folders `…/batch=N`. A batch that was interrupted is removed before it
is written again, so a table holds every batch once, and all Parquet readers can read it. Rows of
batches after the last committed one may still be removed.

`compact` replaces many small files by few large ones. An interrupted exchange is finished later
from a note in the folder `_compact`, which Spark's readers skip.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.tables.hadoop_files import HadoopFiles

_BATCH = "batch"
_COMPACT = "_compact"
# Bytes that a file of compacted rows should have.
_FILE_SIZE = 128 * 1024 * 1024


class BatchFiles:
    """A table in a folder.

    spark: the session; folder: a path or a URI of Hadoop's; partitions: the columns by which rows
    are put into folders, before their batch.
    """

    def __init__(self, spark: SparkSession, folder: str, partitions: Sequence[str] = ()) -> None:
        self._spark = spark
        self._files = HadoopFiles(spark, folder)
        self._partitions = tuple(partitions)
        self._has_written = False

    @property
    def exists(self) -> bool:
        """Whether the table has any row."""
        return bool(self._files.listed(self._pattern()))

    def read(self, through: int | None = None) -> DataFrame:
        """The rows, with the number of their batch. through: the last batch to read; None: all."""
        rows = self._spark.read.parquet(self._files.root)
        return rows if through is None else rows.where(F.col(_BATCH) <= through)

    def write(self, rows: DataFrame, batch: int) -> None:
        """Write a batch, in the place of what an interrupted attempt may have written of it."""
        if not self._has_written:  # later batches of this process cannot have been written before
            self._finish_exchanges()
            for name in self._files.listed(self._pattern(batch)):
                self._files.delete(name)
            self._has_written = True
        writer = rows.withColumn(_BATCH, F.lit(batch)).write.mode("append")
        writer.partitionBy(*self._partitions, _BATCH).parquet(self._files.root)

    def compact(self, through: int) -> tuple[int, int]:
        """Replace the files of each folder of batches by few; return their numbers, before and now.

        through: the last batch that is committed. A reader that runs at the same time may fail, or
        miss rows of a folder that is being replaced; writers are not disturbed.
        """
        self._finish_exchanges()
        before = after = 0
        for folder, batches in sorted(self._folders(through).items()):
            names = [f"{folder}{_BATCH}={number}" for number in batches]
            files = [file for name in names for file in self._files.listed(f"{name}/*.parquet")]
            size = sum(self._files.size(name) for name in names)
            parts = max(1, -(-size // _FILE_SIZE))
            before += len(files)
            if len(files) <= parts:
                after += len(files)
                continue
            data = f"{_COMPACT}/{uuid.uuid4().hex}"
            rows = self._spark.read.parquet(*(self._files.path(name) for name in files))
            rows.coalesce(parts).write.parquet(self._files.path(data))
            after += len(self._files.listed(f"{data}/*.parquet"))
            note = {"from": names, "to": names[-1], "data": data}
            self._files.create(f"{data}.json", json.dumps(note))
            self._exchange(f"{data}.json")
        return before, after

    def _exchange(self, name: str) -> None:
        """Put compacted files in the place of those that they were made of."""
        note = json.loads(self._files.read(name))
        if self._files.exists(note["data"]):
            for old in note["from"]:
                self._files.delete(old)
            self._files.rename(note["data"], note["to"])
        self._files.delete(name)

    def _finish_exchanges(self) -> None:
        for name in self._files.listed(f"{_COMPACT}/*.json"):
            self._exchange(name)
        for name in self._files.listed(f"{_COMPACT}/*"):
            self._files.delete(name)  # of a compaction that was interrupted before the exchange

    def _folders(self, through: int) -> dict[str, list[int]]:
        """The numbers of the batches in each folder, sorted."""
        found: dict[str, list[int]] = defaultdict(list)
        for name in self._files.listed(self._pattern()):
            folder, _, number = name.rpartition(f"{_BATCH}=")
            if int(number) <= through:
                found[folder].append(int(number))
        return {folder: sorted(numbers) for folder, numbers in found.items()}

    def _pattern(self, batch: int | None = None) -> str:
        return "/".join(
            [
                *(f"{name}=*" for name in self._partitions),
                f"{_BATCH}={'*' if batch is None else batch}",
            ]
        )
