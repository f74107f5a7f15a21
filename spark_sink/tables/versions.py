"""The versions of a table: each is a small file that names the Parquet files of its buckets.

A version appears by renaming its file, which fails if the version exists: readers see the old one
or the new one, and of two writers one fails. Files go through Hadoop's API, so a table may lie
wherever Spark writes.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_sink.errors import StreamError

# Versions that stay, so that readers of an older one can finish.
_KEPT = 3


@dataclass(frozen=True)
class Version:
    """What a table is made of.

    number: 0 for a table that does not exist; buckets: into how many parts keys are hashed; keys:
    the fields that identify a document; files: of each bucket, relative to the table; through: the
    token of the last event that has been applied; complete_from: the token from which on the table
    has every document that an update changes; data: the folder that this version has added.
    """

    number: int = 0
    buckets: int = 0
    keys: tuple[str, ...] = ()
    files: dict[str, list[str]] = field(default_factory=dict)
    through: str = ""
    complete_from: str = ""
    data: str = ""


class VersionLog:
    """The versions of the table in a folder, which may be a path or a URI of Hadoop's."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._configuration: Any = spark._jsc.hadoopConfiguration()
        self._root = self._path(root)
        self._files: Any = self._root.getFileSystem(self._configuration)
        self._root = self._files.makeQualified(self._root)

    def path(self, relative: str) -> str:
        """The address of a file of the table."""
        return str(self._path(f"{self._root.toString()}/{relative}").toString())

    def newest(self) -> Version:
        """The newest version; number 0 where there is no table. Raises StreamError."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else Version()

    def new_folder(self) -> str:
        """A name for a folder of data, relative to the table."""
        return f"data/{uuid.uuid4().hex}"

    def files_in(self, folder: str) -> dict[str, list[str]]:
        """The Parquet files that were written to a folder, by bucket, relative to the table."""
        found: dict[str, list[str]] = {}
        for status in self._listed(f"{folder}/bucket=*/*.parquet"):
            bucket = str(status.getPath().getParent().getName())
            name = f"{folder}/{bucket}/{status.getPath().getName()}"
            found.setdefault(bucket.removeprefix("bucket="), []).append(name)
        return found

    def commit(self, version: Version) -> None:
        """Make the version the newest. Raises StreamError if another writer was faster."""
        final = self._file_of(version.number)
        draft = self._path(f"{self._root.toString()}/versions/.draft-{uuid.uuid4().hex}")
        stream = self._files.create(draft, True)
        stream.write(bytearray(json.dumps(asdict(version)).encode()))
        stream.close()
        context = self._jvm.org.apache.hadoop.fs.FileContext
        options = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        try:
            context.getFileContext(self._files.getUri(), self._configuration).rename(
                draft, final, self._gateway.new_array(options, 0)
            )
        except Py4JJavaError as error:
            self._files.delete(draft, False)
            raise StreamError(
                f"version {version.number} of the table at {self._root.toString()} has been "
                "written by another query: let only one query write to a table",
                error.java_exception,
            ) from None
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove old versions, and data that no version that stays refers to."""
        numbers = self._numbers()
        for number in numbers[:-_KEPT]:
            self._files.delete(self._file_of(number), False)
        used = set()
        for number in numbers[-_KEPT:]:
            for files in self._read(number).files.values():
                used |= {name.split("/")[1] for name in files}
        for status in self._listed("data/*"):
            if status.getPath().getName() not in used:
                self._files.delete(status.getPath(), True)

    def _read(self, number: int) -> Version:
        stream = self._files.open(self._file_of(number))
        text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        stream.close()
        document = json.loads(text)
        document["keys"] = tuple(document["keys"])
        return Version(**document)

    def _numbers(self) -> list[int]:
        names = [str(status.getPath().getName()) for status in self._listed("versions/*.json")]
        return sorted(int(name.removesuffix(".json")) for name in names)

    def _listed(self, pattern: str) -> list[Any]:
        return list(self._files.globStatus(self._path(f"{self._root.toString()}/{pattern}")) or ())

    def _file_of(self, number: int) -> Any:
        return self._path(f"{self._root.toString()}/versions/{number:012}.json")

    def _path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)
