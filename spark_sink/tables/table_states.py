"""The states of a table's versions: what a version knows beside its rows.

A state is a JSON document in the table's folder `_mergerouter`, whose name readers of Delta tables
and their clean-up ignore. It is written before the commit, and the commit has its number as the
application transaction `mergerouter`. Transactions survive the checkpoints of Delta's log, whoever
makes them, and the clean-up of commits; what a commit says beside its files (commit info) does not.
The numbers are random, so that two writers of one version never write the same file.

The ranges of a current table grow with it, so a state that has those of the version before names
its file instead.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from spark_sink.errors import StreamError
from spark_sink.folders import Folder

APPLICATION = "mergerouter"
"""The application transaction with the number of a version's state."""
RANGES = "ranges"
"""The field with the ranges of a current table."""
_FOLDER = "_mergerouter"
_NUMBERS = 2**62
# How much older than the newest version's state those are that no reader of a version needs.
_KEPT = timedelta(hours=1)


class TableStates:
    """The states of the table at an address, a path or a URI."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._folder = Folder(address)
        self._ranges: tuple[int, Any] = 0, None
        """The ranges of the state that was written or read last, and the file that has them."""

    def write(self, state: Mapping[str, Any]) -> int:
        """Write the state of a version that is to be committed; return its number. OSError."""
        number = secrets.randbelow(_NUMBERS)
        document, (file, known) = dict(state), self._ranges
        if RANGES in state and state[RANGES] == known:
            document[RANGES] = file
        else:
            self._ranges = number, state.get(RANGES)
        self._folder.write(_path(number), json.dumps(document))
        return number

    def read(self, number: int) -> dict[str, Any]:
        """Return a state. Raises StreamError if its file is lost, and OSError."""
        found = self._document(number)
        file = found.get(RANGES)
        if isinstance(file, int):
            found[RANGES] = self._document(file)[RANGES]
        self._ranges = file if isinstance(file, int) else number, found.get(RANGES)
        return found

    def _document(self, number: int) -> dict[str, Any]:
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

        A commit in progress has a younger one.
        """
        files = {each.path: each.mtime for each in self._folder.listed(_FOLDER)}
        needed = _path(self._ranges[0])
        if (time := files.get(_path(newest))) is not None:
            old = [path for path, of in files.items() if of < time - _KEPT and path != needed]
            self._folder.remove(*old)


def _path(number: int) -> str:
    return f"{_FOLDER}/{number}.json"
