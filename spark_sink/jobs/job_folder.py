"""The folder of a job: its tables, its checkpoint, and what it was started with.

The folder is read through pyarrow, without a JVM, so `status` and `offsets` answer at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pyarrow import fs

from spark_sink.errors import OptionError
from spark_sink.folders import open_folder


@dataclass(frozen=True)
class JobRecord:
    """What a job was started with; the connection string is left out, as it may hold a password.

    namespaces: collections and databases; options: further options of the source; tables: which of
    "bronze" and "current" it keeps.
    """

    namespaces: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    tables: tuple[str, ...] = ("bronze", "current")


@dataclass(frozen=True)
class LoggedBatch:
    """A batch of the checkpoint. offset: where it ends; committed: when, None if it is not."""

    number: int
    offset: dict[str, Any]
    committed: datetime | None


class JobFolder:
    """A folder, given as a path or as a URI that both Spark and pyarrow know.

    Raises OptionError if pyarrow cannot read it.
    """

    def __init__(self, address: str) -> None:
        self.address = address if "://" in address else str(Path(address).resolve())
        """The folder as Spark takes it."""
        self._files, self._root = open_folder(address)

    @property
    def bronze(self) -> str:
        """Where the rows of events and snapshots are kept."""
        return f"{self.address}/bronze"

    @property
    def current(self) -> str:
        """Where the current table is kept."""
        return f"{self.address}/current"

    @property
    def signals(self) -> str:
        """Where signals are read from."""
        return f"{self.address}/signals"

    @property
    def checkpoint(self) -> str:
        """Where the query keeps its offsets."""
        return f"{self.address}/checkpoint"

    def begin(self, record: JobRecord, *, once: bool = False) -> None:
        """Write what the job is started with.

        once: for a snapshot alone, which an earlier start may have interrupted but not ended.
        Raises OptionError if the folder has a job that this one cannot go on with.
        """
        batches = self.batches()
        if batches:
            self._refuse(self.record(), record)
            plan = batches[-1].offset.get("snapshot")
            if once and (plan is None or plan.get("ended")):
                raise OptionError(
                    f"the job in {self.address} has had its snapshot: give another folder by --out"
                )
        self._files.create_dir(self._root)
        with self._files.open_output_stream(f"{self._root}/job.json") as stream:
            stream.write(json.dumps(asdict(record), indent=2).encode())

    def record(self) -> JobRecord:
        """What the job was started with. Raises OptionError if there is no job."""
        text = self._text("job.json")
        if text is None:
            raise OptionError(f"there is no job in {self.address}: correct --out")
        found = json.loads(text)
        return JobRecord(tuple(found["namespaces"]), found["options"], tuple(found["tables"]))

    def _refuse(self, old: JobRecord, new: JobRecord) -> None:
        for name, before, now in (
            ("follows", set(old.namespaces), set(new.namespaces)),
            ("keeps the tables", set(old.tables), set(new.tables)),
        ):
            if before != now:
                raise OptionError(
                    f"the job in {self.address} {name} {', '.join(sorted(before)) or 'all'}, not "
                    f"{', '.join(sorted(now)) or 'all'}: start it as before, or give another "
                    "folder by --out"
                )

    def batches(self) -> list[LoggedBatch]:
        """The batches that the checkpoint still has, in their order."""
        commits = {int(each.base_name): each.mtime for each in self._numbered("commits")}
        found = []
        for each in self._numbered("offsets"):
            number = int(each.base_name)
            found.append(LoggedBatch(number, self.offset(number), commits.get(number)))
        return found

    def offset(self, batch: int) -> dict[str, Any]:
        """The offset at which a batch ends; empty where the checkpoint has none."""
        lines = (self._text(f"checkpoint/offsets/{batch}") or "").splitlines()
        return json.loads(lines[-1]) if len(lines) > 2 and lines[-1] != "-" else {}

    def last_committed(self) -> LoggedBatch | None:
        """The newest batch with a commit entry."""
        done = [batch for batch in self.batches() if batch.committed is not None]
        return done[-1] if done else None

    def count(self, folder: str) -> int:
        """How many entries a folder of the job has."""
        return len(self._listed(folder))

    def _numbered(self, log: str) -> Sequence[Any]:
        entries = self._listed(f"checkpoint/{log}")
        return sorted(
            (each for each in entries if each.base_name.isdecimal()),
            key=lambda each: int(each.base_name),
        )

    def _listed(self, folder: str) -> list[Any]:
        selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
        return list(self._files.get_file_info(selector))

    def _text(self, name: str) -> str | None:
        path = f"{self._root}/{name}"
        if self._files.get_file_info(path).type != fs.FileType.File:
            return None
        with self._files.open_input_stream(path) as stream:
            return bytes(stream.read()).decode()
