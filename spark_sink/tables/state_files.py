"""The states of a Delta table's versions, which are recorded beside its files and in its commits.

A `TableState` is a JSON document in the table's folder `_mergerouter`, whose name readers of Delta
tables and their clean-up ignore. It is written before the commit, which has its number as the
application transaction `mergerouter`. Transactions survive the checkpoints of Delta's log, whoever
makes them, and the clean-up of commits. The numbers are random, so that two writers of one version
never write the same file.

A commit has the state as commit info as well, which no checkpoint has: it serves to find older
versions, and those that a restore has undone. Commits are read here without delta-rs,
because the Python that plans batches may lack it, and because delta-rs reads all commits to find
one: `job at` finds a time among 100,000 commits in 0.6 s (docs/performance.md#current-tables).
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_sink.errors import StreamError
from spark_sink.folders import Folder
from spark_sink.tables.table_state import TableState

APPLICATION = "mergerouter"
"""The application transaction with the number of a version's state."""
STATE = "mergerouter"
"""The field of a commit with the state."""
RESTORE = "RESTORE"
"""The operation of a commit that makes an older version the newest one."""
_FOLDER = "_mergerouter"
_LOG, _COMMIT = "_delta_log", r"\d{20}\.json"
_NUMBERS = 2**62
# No reader needs a state that is older than the newest version's by more than this.
_KEPT = timedelta(hours=1)


def write_state(address: str, state: TableState) -> int:
    """Write the state of a version that is to be committed; return its number. OSError."""
    number = secrets.randbelow(_NUMBERS)
    Folder(address).write(_path(number), json.dumps(state.document))
    return number


def read_state(address: str, number: int) -> TableState:
    """Return the state with a number.

    Raises StreamError if its file is lost or damaged, or of a newer version of this package; and
    OSError.
    """
    text = Folder(address).text(_path(number))
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        if text is not None:
            return TableState.of(json.loads(text), address)
    loss = "has lost" if text is None else "has damage in"
    raise StreamError(
        f"the table at {address} {loss} its file {_path(number)}, which says where it is in the "
        "stream: restore the file from a backup, or remove a table current for job rebuild to make "
        "it again"
    )


def clean_states(address: str, newest: int) -> None:
    """Remove the states that are older than that of the newest version by an hour. OSError.

    The state of a commit in progress is younger.
    """
    folder = Folder(address)
    files = {file.path: file.mtime for file in folder.listed(_FOLDER)}
    if (time := files.get(_path(newest))) is not None:
        old = [path for path, modified in files.items() if modified < time - _KEPT]
        folder.remove(*old)


def _path(number: int) -> str:
    return f"{_FOLDER}/{number}.json"


def newest_state(address: str) -> TableState:
    """Return the state of a table's newest version; that of no version if there is none.

    It is found without delta-rs, and fast also for a large log: in the newest commit that has a
    state, or in a checkpoint. Raises StreamError if it cannot be read.
    """
    folder = Folder(address)
    try:
        for _, state in states_in(folder, _newest_version(folder)):
            return state
        names = sorted((file.base_name for file in folder.listed(_LOG)), reverse=True)
        for name in (n for n in names if ".checkpoint." in n and n.endswith(".parquet")):
            for transaction in _transactions_in(folder, name):
                if transaction["appId"] == APPLICATION:
                    return read_state(address, int(transaction["version"]))
    except OSError as error:
        raise StreamError(
            f"the table at {address} cannot be read: correct the path or the access to it", error
        ) from None
    return TableState()


def _newest_version(folder: Folder) -> int:
    """Return the newest version, found from the last checkpoint: stores list long logs slowly."""
    newest, step = 0, 1
    with suppress(ValueError, KeyError, TypeError):
        newest = int(json.loads(folder.text(f"{_LOG}/_last_checkpoint") or "")["version"])
    if not folder.has(commit_path(newest)):  # the hint is missing or wrong, or there is no table
        names = (file.base_name for file in folder.listed(_LOG))
        return max((int(name[:20]) for name in names if re.fullmatch(_COMMIT, name)), default=-1)
    while folder.has(commit_path(newest + step)):
        newest, step = newest + step, 2 * step
    while step := step // 2:
        newest += step * folder.has(commit_path(newest + step))
    return newest


def _transactions_in(folder: Folder, name: str) -> list[dict[str, Any]]:
    """Return the application transactions in a file of a checkpoint of the log."""
    with folder.files.open_input_file(f"{_LOG}/{name}") as stream:
        column = pq.ParquetFile(stream).read(["txn"])["txn"]
    valid: list[dict[str, Any]] = column.filter(pc.is_valid(column)).to_pylist()
    return valid


def commit_path(version: int) -> str:
    """Return the file of a commit in the folder of its table."""
    return f"{_LOG}/{version:020}.json"


def _commits_in(folder: Folder, newest: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the commit info of versions, from the newest down to the first deleted commit."""
    for version in range(newest, -1, -1):
        if (text := folder.text(commit_path(version))) is None:
            return
        infos = (json.loads(line) for line in text.splitlines() if '"commitInfo"' in line)
        yield version, next((info["commitInfo"] for info in infos if "commitInfo" in info), {})


def states_in(folder: Folder, newest: int) -> Iterator[tuple[int, TableState]]:
    """Return versions and the states in their commits, from `newest` downwards.

    Those before a deleted commit are left out. Raises OSError, and StreamError for the state of a
    newer version of this package.
    """
    for version, info in _commits_in(folder, newest):
        if STATE in info:
            yield version, TableState.of(info[STATE], folder.address)


def state_in_commits(folder: Folder, newest: int) -> TableState | None:
    """Return the newest state in commits that no restore has undone.

    `newest` is the table's version. The result is that of no version if a restore has undone all
    known states, and None if the commits that are kept have neither a state nor a restore. Raises
    OSError and StreamError.
    """
    latest: TableState | None = None
    kept, until = newest, math.inf
    for version, info in _commits_in(folder, newest):
        if version > kept or info.get("timestamp", 0) > until:
            continue
        if info.get("operation") == RESTORE:
            restored, latest = info["operationParameters"], TableState()
            if restored.get("version") is None:
                until = int(restored.get("datetime", 0))
            else:
                kept = int(restored["version"])
        elif STATE in info:
            return TableState.of(info[STATE], folder.address)
    return latest


def restored_error(address: str) -> StreamError:
    """Return the error for a table that lacks batches because an older version was restored."""
    return StreamError(
        f"an older version of the table at {address} was restored, so it lacks batches that the "
        "query does not write again: restore the version before that, or start a new query with "
        "a snapshot. Of a job, remove the table current for job rebuild to make it again"
    )
