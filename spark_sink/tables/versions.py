"""The versions of a table: each is a small file that names the Parquet files of its buckets.

A version appears by renaming its file, which fails if the version exists: readers see the old one
or the new one, and of two writers one fails. Files go through Hadoop's API, so a table may lie
wherever Spark writes.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from spark_sink.errors import StreamError
from spark_sink.tables.hadoop_files import HadoopFiles

# Versions that stay, so that readers of an older one can finish.
_KEPT = 3


@dataclass(frozen=True)
class Version:
    """What a table is made of.

    number: 0 for a table that does not exist; buckets: into how many parts keys are hashed; keys:
    the fields that identify a document; files: of each bucket, relative to the table; through: the
    token of the last event that has been applied; complete_from: the token from which on the table
    has every document that an update changes; complete_in: the same for single namespaces, where a
    later snapshot has read them; data: the folder that this version has added.
    """

    number: int = 0
    buckets: int = 0
    keys: tuple[str, ...] = ()
    files: dict[str, list[str]] = field(default_factory=dict)
    through: str = ""
    complete_from: str = ""
    complete_in: dict[str, str] = field(default_factory=dict)
    data: str = ""


class VersionLog:
    """The versions of the table in a folder, which may be a path or a URI of Hadoop's."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._files = HadoopFiles(spark, root)

    def path(self, relative: str) -> str:
        """The address of a file of the table."""
        return self._files.path(relative)

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
        for name in self._files.listed(f"{folder}/bucket=*/*.parquet"):
            bucket = name.split("/")[-2]
            found.setdefault(bucket.removeprefix("bucket="), []).append(name)
        return found

    def commit(self, version: Version) -> None:
        """Make the version the newest. Raises StreamError if another writer was faster."""
        try:
            self._files.create(_file_of(version.number), json.dumps(asdict(version)))
        except Py4JJavaError as error:
            raise StreamError(
                f"version {version.number} of the table at {self._files.root} has been "
                "written by another query: let only one query write to a table",
                error.java_exception,
            ) from None
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove old versions, and data that no version that stays refers to."""
        numbers = self._numbers()
        for number in numbers[:-_KEPT]:
            self._files.delete(_file_of(number))
        used = set()
        for number in numbers[-_KEPT:]:
            for files in self._read(number).files.values():
                used |= {name.split("/")[1] for name in files}
        for name in self._files.listed("data/*"):
            if name.split("/")[1] not in used:
                self._files.delete(name)

    def _read(self, number: int) -> Version:
        document = json.loads(self._files.read(_file_of(number)))
        document["keys"] = tuple(document["keys"])
        return Version(**document)

    def _numbers(self) -> list[int]:
        names = [name.split("/")[1] for name in self._files.listed("versions/*.json")]
        return sorted(int(name.removesuffix(".json")) for name in names)


def _file_of(number: int) -> str:
    return f"versions/{number:012}.json"
