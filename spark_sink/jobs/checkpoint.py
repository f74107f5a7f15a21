"""The checkpoint of a job's query: Spark's files, which are read and written without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_sink.errors import StreamError
from spark_sink.folders import Folder
from spark_sink.source.offsets import Offset


@dataclass(frozen=True)
class LoggedBatch:
    """A batch of the checkpoint: the offset at its end, and the time of its commit, if any."""

    number: int
    offset: dict[str, Any]
    committed: datetime | None

    @property
    def end(self) -> Offset:
        """The offset. Raises StreamError if it is not one of the source."""
        return Offset.of(self.offset)


class Checkpoint:
    """A checkpoint at an address, a path or a URI. Raises OptionError if pyarrow cannot read it."""

    def __init__(self, address: str) -> None:
        self.address = address
        """The folder as a path or URI for Spark."""
        self._folder = Folder(address)

    @property
    def is_empty(self) -> bool:
        """Whether no batch was planned yet."""
        return not self._numbered("offsets")

    def batches(self) -> list[LoggedBatch]:
        """Return the batches that it still contains, in order.

        Raises StreamError for a file that is not whole: Spark renames its files before they are on
        the disk, so a power failure may cut the last ones.
        """
        commits = self._numbered("commits")
        for number in commits:
            self._whole(f"commits/{number}")
        return [
            LoggedBatch(number, self.offset(number), commits.get(number))
            for number in self._numbered("offsets")
        ]

    def offset(self, batch: int) -> dict[str, Any]:
        """Return the offset at which a batch ends; empty where there is none."""
        lines = (self._whole(f"offsets/{batch}") or "-").splitlines()
        offset: dict[str, Any] = {} if lines[-1] == "-" else json.loads(lines[-1])
        return offset

    def last_planned(self) -> LoggedBatch | None:
        """Return the newest batch, which may be in progress. Raises StreamError as `batches`."""
        return self._newest(self._numbered("offsets"))

    def last_committed(self) -> LoggedBatch | None:
        """Return the newest batch with a commit entry. Raises StreamError as `batches`."""
        return self._newest(self._numbered("offsets").keys() & self._numbered("commits"))

    def _newest(self, numbers: Collection[int]) -> LoggedBatch | None:
        if not numbers:
            return None
        number, commits = max(numbers), self._numbered("commits")
        self._whole(f"commits/{number}")
        return LoggedBatch(number, self.offset(number), commits.get(number))

    def query(self) -> str | None:
        """Return the id of the query, which begins with its checkpoint; None before the first."""
        text = self._whole("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def _whole(self, path: str) -> str | None:
        """Return the text of a file; None for no file. Raises StreamError."""
        text = self._folder.text(path)
        if text is not None and not is_complete(path, text):
            raise StreamError(
                f"the file {self.address}/{path} is damaged: start the job, which makes the "
                "checkpoint again from the tables"
            )
        return text

    def write(self, query: str, offsets: Mapping[int, Mapping[str, Any]], committed: int) -> None:
        """Write the offsets of batches; those up to `committed` are committed.

        The next start of the job repeats a batch that is not committed.
        """
        self.remove_checksums()
        self._folder.write("metadata", json.dumps({"id": query}))
        for number, offset in offsets.items():
            self._folder.write(f"offsets/{number}", _offset_text(offset))
            if number <= committed:
                self._folder.write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')

    def remove(self) -> None:
        """Remove what Spark keeps in it."""
        self._folder.remove("offsets", "commits", "sources", "metadata", ".metadata.crc")

    def remove_checksums(self) -> None:
        """Remove Spark's checksums, which may be cut, or those of files that were replaced since.

        Spark checks a file if there is one.
        """
        folder = self._folder
        for log in ("", "offsets", "commits"):
            checksums = (file for file in folder.listed(log) if file.base_name.endswith(".crc"))
            folder.remove(*(file.path for file in checksums))

    def _numbered(self, log: str) -> dict[int, datetime]:
        """Return the numbers of a log's files, in order, and when they were written."""
        files = self._folder.listed(log)
        times = {int(file.base_name): file.mtime for file in files if file.base_name.isdecimal()}
        return dict(sorted(times.items()))


def is_complete(path: str, text: str) -> bool:
    """Return whether a file of a checkpoint, such as offsets/7 or metadata, has its end.

    The last line is a JSON object, which is invalid if it is cut, or "-" for no offset.
    """
    fewest = {"offsets": 3, "commits": 2}.get(path.split("/")[0], 1)
    *before, last = text.splitlines() or [""]
    try:
        return len(before) + 1 >= fewest and (last == "-" or isinstance(json.loads(last), dict))
    except ValueError:
        return False


def _offset_text(offset: Mapping[str, Any]) -> str:
    """Return the file of an offset in Spark's checkpoint."""
    settings = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
    return "\n".join(("v1", json.dumps(settings), json.dumps(offset)))
