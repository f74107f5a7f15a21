"""Files of a folder through Hadoop's API: wherever Spark can write, these can be read and moved."""

from __future__ import annotations

import uuid
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class HadoopFiles:
    """The files below a folder, which is a path or a URI of Hadoop's.

    All names are relative to the folder. The methods raise Py4JJavaError where the file system
    fails.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._configuration: Any = spark._jsc.hadoopConfiguration()
        path = jvm.org.apache.hadoop.fs.Path(root)
        self._system: Any = path.getFileSystem(self._configuration)
        self.root = str(self._system.makeQualified(path).toString())
        """The folder's qualified address."""

    def path(self, name: str) -> str:
        """The address of a file."""
        return str(self._path(name).toString())

    def listed(self, pattern: str) -> list[str]:
        """The names of the files and folders that match a glob pattern."""
        found = self._system.globStatus(self._path(pattern)) or ()
        paths = [str(status.getPath().toString()) for status in found]
        return [path.removeprefix(f"{self.root}/") for path in paths]

    def size(self, name: str) -> int:
        """The bytes of a file, or of all files below a folder."""
        return int(self._system.getContentSummary(self._path(name)).getLength())

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return bool(self._system.exists(self._path(name)))

    def read(self, name: str) -> str:
        """The text of a file."""
        stream = self._system.open(self._path(name))
        text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        stream.close()
        return str(text)

    def create(self, name: str, text: str) -> None:
        """Write a new file, which appears as a whole. Fails if it exists."""
        folder, _, _ = name.rpartition("/")
        draft = f"{folder}/.draft-{uuid.uuid4().hex}" if folder else f".draft-{uuid.uuid4().hex}"
        stream = self._system.create(self._path(draft), True)
        stream.write(bytearray(text.encode()))
        stream.close()
        try:
            self.rename(draft, name)
        except Py4JJavaError:
            self.delete(draft)
            raise

    def rename(self, name: str, to: str) -> None:
        """Rename a file or a folder. Fails if the target exists."""
        context = self._jvm.org.apache.hadoop.fs.FileContext
        options = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        context.getFileContext(self._system.getUri(), self._configuration).rename(
            self._path(name), self._path(to), self._gateway.new_array(options, 0)
        )

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with all that it holds; one that is not there is no error."""
        self._system.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}")
