"""Reads the states in the commits of a Delta table, without delta-rs.

Commits have the states as commit info, which serves to find older versions, and versions that a
restore has undone. The newest state is found fast also in a large log.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_sink.errors import StreamError
from spark_sink.folders import Folder, open_folder
from spark_sink.tables.state_files import APPLICATION, StateFiles

STATE = "mergerouter"
"""The field of a commit with the state."""
RESTORE = "RESTORE"
"""The operation of a commit that makes an older version the newest one."""
_LOG = "_delta_log"


def newest_state(address: str) -> dict[str, Any]:
    """Return the state of a table's newest version; empty if there is none.

    It is found without delta-rs, and fast also for a large log: in the newest commit that has a
    state, or in a checkpoint. Raises StreamError if it cannot be read.
    """
    folder = Folder(address)
    try:
        for _, state in states_in(folder, _newest_version(folder, _last_checkpoint(folder))):
            return state
        names = sorted((each.base_name for each in folder.listed(_LOG)), reverse=True)
        newest = next((each for each in names if re.fullmatch(r"\d{20}\.json", each)), "-1")
        for _, state in states_in(folder, int(newest[:20])):  # the hint was missing, or wrong
            return state
        for name in (e for e in names if ".checkpoint." in e and e.endswith(".parquet")):
            for each in _transactions_in(address, name):
                if each["appId"] == APPLICATION:
                    return StateFiles(address).read(int(each["version"]))
    except OSError as error:
        raise StreamError(
            f"the table at {address} cannot be read: correct the path or the access to it", error
        ) from None
    return {}


def _last_checkpoint(folder: Folder) -> int:
    """Return the version that the log's hint names; 0 without a valid one."""
    with suppress(ValueError, KeyError, TypeError):
        return int(json.loads(folder.text(f"{_LOG}/_last_checkpoint") or "")["version"])
    return 0


def _newest_version(folder: Folder, known: int) -> int:
    """Return the newest version, found from a known one: object stores list long logs slowly."""
    newest, step = known, 1
    while folder.has(commit_path(newest + step)):
        newest, step = newest + step, 2 * step
    while step := step // 2:
        newest += step * folder.has(commit_path(newest + step))
    return newest


def _transactions_in(address: str, name: str) -> list[dict[str, Any]]:
    """Return the application transactions in a file of a checkpoint of the log."""
    files, root = open_folder(address)
    with files.open_input_file(f"{root}/{_LOG}/{name}") as stream:
        found = pq.ParquetFile(stream).read(["txn"])["txn"]
    valid: list[dict[str, Any]] = found.filter(pc.is_valid(found)).to_pylist()
    return valid


def commit_path(version: int) -> str:
    """Return the file of a commit in the folder of its table."""
    return f"{_LOG}/{version:020}.json"


def _commits_in(folder: Folder, newest: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the commit info of versions, from the newest down to the first deleted commit."""
    for version in range(newest, -1, -1):
        if (text := folder.text(commit_path(version))) is None:
            return
        infos = (json.loads(each) for each in text.splitlines() if '"commitInfo"' in each)
        yield version, next((each["commitInfo"] for each in infos if "commitInfo" in each), {})


def states_in(folder: Folder, newest: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return versions and the states in their commits, from `newest` downwards.

    Those before a deleted commit are left out. Raises OSError.
    """
    return ((n, said[STATE]) for n, said in _commits_in(folder, newest) if STATE in said)


def newest_in(folder: Folder, newest: int) -> dict[str, Any] | None:
    """Return the newest state in commits that no restore has undone.

    `newest` is the table's version. The result is empty if a restore has undone all known states,
    and None if the commits that are kept have neither a state nor a restore. Raises OSError.
    """
    found: dict[str, Any] | None = None
    kept, until = newest, math.inf
    for version, said in _commits_in(folder, newest):
        if version > kept or said.get("timestamp", 0) > until:
            continue
        if said.get("operation") == RESTORE:
            given, found = said["operationParameters"], {}
            if given.get("version") is None:
                until = int(given.get("datetime", 0))
            else:
                kept = int(given["version"])
        elif STATE in said:
            return dict(said[STATE])
    return found


def restored_error(address: str) -> StreamError:
    """Return the error for a table that lacks batches because an older version was restored."""
    return StreamError(
        f"an older version of the table at {address} was restored, so it lacks batches that the "
        "job does not write again: restore the version before that, remove the table current for "
        "job rebuild to make it again, or start a job in another folder"
    )
