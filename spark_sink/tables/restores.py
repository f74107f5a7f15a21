"""Tells a table of which another program has restored an older version.

Such a table lacks batches, but an application transaction survives a restore: so the state of the
newest version is that of a later one.
"""

from __future__ import annotations

import math

from spark_sink.errors import StreamError
from spark_sink.folders import Folder
from spark_sink.tables.parquet_parts import BATCH
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.range_files import partition_digest, partitions_of
from spark_sink.tables.table_state import TableState
from spark_sink.tables.table_version import TableVersion
from spark_sink.tables.version_states import STATE, commits_in

RESTORE = "RESTORE"
"""The operation of a commit that makes an older version the newest one."""


def is_restored(newest: TableVersion, name: str = "") -> bool:
    """Return whether an older version was restored beneath the state of a later one.

    If the commits of both have expired, the files are compared with the state. A current table must
    have the partitions of its state. Another table, whose `name` is given, must have rows of the
    newest batch that wrote some; without a name others may remove rows from the table. Raises
    StreamError.
    """
    state, known = newest.state(), None
    if state != TableState() and newest.version is not None:
        with newest.stream_errors():
            known = _state_in_commits(Folder(newest.address), newest.version)
    return not _fits(newest, state, name) if known is None else known != state


def require_not_restored(newest: TableVersion, name: str = "") -> None:
    """Raise StreamError if an older version was restored (`is_restored`)."""
    if is_restored(newest, name):
        raise restored_error(newest.address)


def restored_error(address: str) -> StreamError:
    """Return the error for a table that lacks batches because an older version was restored."""
    return StreamError(
        f"an older version of the table at {address} was restored, so it lacks batches that the "
        "query does not write again: restore the version before that, or start a new query with "
        "a snapshot. Of a job, remove the table current for job rebuild to make it again"
    )


def _state_in_commits(folder: Folder, newest: int) -> TableState | None:
    """Return the newest state in commits that no restore has undone.

    `newest` is the table's version. The result is that of no version if a restore has undone all
    known states, and None if the commits that are kept have neither a state nor a restore. Raises
    OSError and StreamError.
    """
    latest: TableState | None = None
    kept, until = newest, math.inf
    for version, info in commits_in(folder, newest):
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


def _fits(newest: TableVersion, state: TableState, name: str) -> bool:
    """Return whether the files fit a state, also after others have compacted them."""
    if KEY_RANGE in newest.partitions:
        return bool(partition_digest(partitions_of(newest.files())) == state.partitions)
    batch = state.batch.written.get(name)
    return batch is None or any(
        rows.num_rows for rows in newest.rows([BATCH], [(BATCH, "==", batch)])
    )
