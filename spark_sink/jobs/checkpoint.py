"""The checkpoint of a job's query: Spark's files, which are read and written without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
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

    def batches(self) -> list[LoggedBatch]:
        """Return the batches that it still contains, in order; a damaged offset is empty."""
        commits, found = self._numbered("commits"), []
        for number in self._numbered("offsets"):
            offset: dict[str, Any] = {}
            with suppress(StreamError):
                offset = self.offset(number)
            found.append(LoggedBatch(number, offset, commits.get(number)))
        return found

    def offset(self, batch: int) -> dict[str, Any]:
        """Return the offset at which a batch ends; empty where there is none.

        Raises StreamError for a file that is not whole: Spark renames its files before they are on
        the disk, so a power failure may cut the last ones.
        """
        path = f"offsets/{batch}"
        if (text := self._folder.text(path)) is None:
            return {}
        with self._damage(path):
            _, _, line = text.splitlines()
            offset: dict[str, Any] = {} if line == "-" else json.loads(line)
            return offset

    def last_planned(self) -> LoggedBatch | None:
        """Return the newest batch, if any. Raises StreamError as `offset`, also for its commit."""
        return self._newest(self._numbered("offsets"), self._numbered("commits"))

    def last_committed(self) -> LoggedBatch | None:
        """Return the newest batch with a commit entry. Raises StreamError as `last_planned`."""
        commits = self._numbered("commits")
        return self._newest(self._numbered("offsets").keys() & commits, commits)

    def _newest(self, among: Collection[int], commits: Mapping[int, Any]) -> LoggedBatch | None:
        if not among:
            return None
        number = max(among)
        if number in commits:  # Spark reads the file of the newest one
            with self._damage(path := f"commits/{number}"):
                version, *rest = (self._folder.text(path) or "").splitlines()
                int(version.removeprefix("v")), [*map(json.loads, rest)]
        return LoggedBatch(number, self.offset(number), commits.get(number))

    def query(self) -> str | None:
        """Return the id of the query, which begins with its checkpoint; None before the first.

        Raises StreamError as `offset`.
        """
        text = self._folder.text("metadata")
        with self._damage("metadata"):
            return None if text is None else str(json.loads(text)["id"])

    @contextmanager
    def _damage(self, path: str) -> Iterator[None]:
        """Raise StreamError for a file whose text cannot be parsed."""
        try:
            yield
        except (ValueError, KeyError, TypeError):
            raise StreamError(
                f"the file {self.address}/{path} is damaged: start the job, which makes the "
                "checkpoint again from the tables"
            ) from None

    def write(self, query: str, offsets: Mapping[int, Mapping[str, Any]], committed: int) -> None:
        """Replace all by the offsets of batches; those up to `committed` are committed."""
        self._folder.remove("offsets", "commits", "sources", "metadata", ".metadata.crc")
        self._folder.write("metadata", json.dumps({"id": query}))
        for number, offset in offsets.items():
            self._folder.write(f"offsets/{number}", _offset_text(offset))
            if number <= committed:
                self._folder.write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')

    def remove_checksums(self) -> None:
        """Remove Spark's checksums, which may be cut. Spark checks a file if there is one."""
        folder = self._folder
        for log in ("", "offsets", "commits"):
            checksums = (file for file in folder.listed(log) if file.base_name.endswith(".crc"))
            folder.remove(*(file.path for file in checksums))

    def _numbered(self, log: str) -> dict[int, datetime]:
        """Return the numbers of a log's files, in order, and when they were written."""
        files = self._folder.listed(log)
        times = {int(file.base_name): file.mtime for file in files if file.base_name.isdecimal()}
        return dict(sorted(times.items()))


def _offset_text(offset: Mapping[str, Any]) -> str:
    """Return the file of an offset in Spark's checkpoint."""
    settings = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
    return "\n".join(("v1", json.dumps(settings), json.dumps(offset)))
