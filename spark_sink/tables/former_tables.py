"""Tables of the former forms, which had no Delta log: they are read once, and rewritten.

A current table had a log of its own (`versions/NUMBER.json`, which named files in `data`), tables
of batches were folders `…/batch=N`, with notes of unfinished compactions in `_compact`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_sink.folders import absolute, open_folder
from spark_sink.tables.append_table import AppendTable
from spark_sink.tables.delta_log import Batch
from spark_sink.tables.parquet_parts import BATCH

_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"
_NUMBERED = re.compile(rf"{BATCH}=(\d+)")
_TYPES = {BATCH: "long", "date": "date"}


def announce(address: str) -> None:
    """Tell the user that a table is being rewritten."""
    print(f"the table at {address} is rewritten as a Delta table", file=sys.stderr)  # noqa: T201


class _FormerFolder:
    """The folder of such a table, given as a path or a URI."""

    def __init__(self, address: str) -> None:
        self._address = absolute(address)
        self._files, self._root = open_folder(address)

    def _listed(self, folder: str, *, deep: bool = False) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self._path(folder), allow_not_found=True, recursive=deep)
        found = self._files.get_file_info(selector)
        return sorted(found, key=lambda each: str(each.path))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _delete(self, folder: str) -> None:
        if self._files.get_file_info(self._path(folder)).type == fs.FileType.Directory:
            self._files.delete_dir(self._path(folder))

    def _json(self, path: str) -> dict[str, Any]:
        with self._files.open_input_stream(path) as stream:
            found: dict[str, Any] = json.loads(bytes(stream.read()))
        return found


class FormerCurrent(_FormerFolder):
    """A current table with a log of versions, of which the newest counts."""

    @property
    def exists(self) -> bool:
        """Whether there is one, or a part of one that was not removed."""
        return bool(self._listed("versions"))

    def position(self) -> Mapping[str, Any]:
        """Return what `TableState` reads."""
        version = self._version()
        return {
            "keys": version["keys"],
            "ranges": [],
            "through": version["through"],
            "completeFrom": version["complete_from"],
            "completeIn": version["complete_in"],
        }

    def files(self) -> list[str]:
        """Return the paths of the version's files, relative to the table."""
        return [name for names in self._version()["files"].values() for name in names]

    def remove(self) -> None:
        """Remove the versions and their files."""
        self._delete("data")
        self._delete("versions")

    def _version(self) -> dict[str, Any]:
        names = [each.path for each in self._listed("versions") if each.extension == "json"]
        return self._json(max(name for name in names if not _is_hidden(name)))


class FormerBatches(_FormerFolder):
    """A table of Parquet files in folders of batches."""

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return bool(self._batches())

    def rewrite(self, spark: SparkSession, table: AppendTable, batch: Batch) -> None:
        """Append the rows up to a batch, the last committed one, as if they were its rows.

        The rows of a later batch are left out, which the query writes again.
        """
        self._finish_compactions()
        folders = [folder for folder, number in self._batches().items() if number <= batch.number]
        addresses = [f"{self._address}/{folder}" for folder in folders]
        if not addresses:
            return
        inference = spark.conf.get(_INFERENCE) or "true"
        spark.conf.set(_INFERENCE, "false")  # a database may have a number as its name
        try:
            rows = spark.read.options(basePath=self._address, mergeSchema="true").parquet(
                *addresses
            )
        finally:
            spark.conf.set(_INFERENCE, inference)
        for name in set(rows.columns) & _TYPES.keys():
            rows = rows.withColumn(name, F.col(name).cast(_TYPES[name]))
        table.write(rows, batch)

    def remove(self) -> None:
        """Remove the folders of the batches."""
        for folder in self._batches():
            self._delete(folder)
        self._delete("_compact")

    def _batches(self) -> dict[str, int]:
        """Return the folders with the numbers of their batches."""
        found = {}
        for each in self._listed("", deep=True):
            match = _NUMBERED.fullmatch(each.base_name)
            if match and each.type == fs.FileType.Directory:
                found[str(each.path).removeprefix(f"{self._root}/")] = int(match[1])
        return found

    def _finish_compactions(self) -> None:
        for each in self._listed("_compact"):
            if each.extension != "json" or _is_hidden(each.path):
                continue
            note = self._json(each.path)
            data = self._path(note["data"])
            if self._files.get_file_info(data).type == fs.FileType.Directory:
                for folder in note["from"]:
                    self._delete(folder)
                self._files.move(data, self._path(note["to"]))
            self._files.delete_file(each.path)


def rewrite_former_batches(
    spark: SparkSession, address: str, partitions: Sequence[str], batch: Batch
) -> None:
    """Rewrite a table of batches up to a batch, if it has the former form. Raises StreamError.

    If this is interrupted after its commit, the former files stay, as files of no table.
    """
    table, former = AppendTable(address, partitions), FormerBatches(address)
    if table.log.exists or not former.exists:
        return
    announce(address)
    former.rewrite(spark, table, batch)
    former.remove()


def _is_hidden(path: str) -> bool:
    return PurePosixPath(path).name.startswith((".", "_"))
