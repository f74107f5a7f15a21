"""The state of a version of a Delta table, which is recorded beside its files.

A state is a JSON document in the table's folder `_mergerouter`, whose name readers of Delta tables
and their clean-up ignore. It has the fields of the newest batch; that of a current table has those
of `table_state.TableState`, too. It is written before the commit, which has its number as the
application transaction `mergerouter`. Transactions survive the checkpoints of Delta's log, whoever
makes them, and the clean-up of commits. Commit info, which commits have beside their files, does
not: it serves to find older versions. The numbers are random, so that two writers of one version
never write the same file.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from spark_sink.errors import StreamError
from spark_sink.events.documents import from_document, stored, to_document
from spark_sink.folders import Folder
from spark_sink.source.offsets import Offset

APPLICATION = "mergerouter"
"""The application transaction with the number of a version's state."""
_FOLDER = "_mergerouter"
_NUMBERS = 2**62
# No reader needs a state that is older than the newest version's by more than this.
_KEPT = timedelta(hours=1)
PARTITIONS = "partitions"
"""The field of a current table's state with the digest of the version's partitions."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch: the id of its query, its number, and the offset at its end.

    Args:
        begin: the offset at its beginning; empty for a query's first batch, and if it is unknown.
        verified: what the last verification of the table has found.
        written: by the name of a table to which the job appends, the newest batch that has rows in
            it; a table without that batch is lost, or is an older copy.
    """

    query: str
    number: int = field(metadata=stored("batch"))
    offset: Mapping[str, Any] = field(default_factory=dict)
    begin: Mapping[str, Any] = field(default_factory=dict)
    verified: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, int] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that a table's state has from the batch, without empty ones."""
        found: dict[str, Any] = to_document(self)
        return found

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Batch | None:
        """Return the batch in a state; None if there is none."""
        return from_document(cls, state) if "query" in state else None

    def wrote(self, name: str) -> Batch:
        """Return this batch, which has rows in the table with that name."""
        return replace(self, written={**self.written, name: self.number})

    def is_same(self, other: Batch) -> bool:
        """Return whether both have the same number and, as far as known, the same events."""
        numbered = (self.query, self.number) == (other.query, other.number)
        begins = self.begin and other.begin and self.begin != other.begin
        return numbered and self.offset == other.offset and not begins

    def may_follow(self, last: Batch) -> bool:
        """Return whether a table whose newest batch is `last` may get this later one.

        It must be of the same query; the next batch must begin where `last` ends, if that is known.
        """
        is_next = self.number == last.number + 1
        begins_there = not (is_next and self.begin) or self.begin == last.offset
        return self.query == last.query and begins_there


def end_of(state: Mapping[str, Any]) -> Offset | None:
    """Return the end of the newest batch in a state; None if that is unknown."""
    return Offset.read(state["offset"]) if state.get("offset") else None


class StateFiles:
    """The files with the states of a Delta table at an address, a path or a URI."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._folder = Folder(address)

    def write(self, state: Mapping[str, Any]) -> int:
        """Write the state of a version that is to be committed; return its number. OSError."""
        number = secrets.randbelow(_NUMBERS)
        self._folder.write(_path(number), json.dumps(state))
        return number

    def read(self, number: int) -> dict[str, Any]:
        """Return a state. Raises StreamError if its file is lost, and OSError."""
        text = self._folder.text(_path(number))
        if text is None:
            raise StreamError(
                f"the table at {self._address} has lost its file {_path(number)}, which says where "
                "it is in the stream: restore the file from a backup, or remove a table current "
                "for job rebuild to make it again"
            )
        found: dict[str, Any] = json.loads(text)
        return found

    def clean(self, newest: int) -> None:
        """Remove the states that are older than that of the newest version by an hour. OSError.

        The state of a commit in progress is younger.
        """
        files = {each.path: each.mtime for each in self._folder.listed(_FOLDER)}
        if (time := files.get(_path(newest))) is not None:
            old = [path for path, modified in files.items() if modified < time - _KEPT]
            self._folder.remove(*old)


def _path(number: int) -> str:
    return f"{_FOLDER}/{number}.json"
