"""What the commits of a Delta table say: files, states, and restored versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake.transaction import AddAction, CommitProperties, Transaction

from spark_sink.errors import StreamError

_STATE = "mergerouter"
"""The field of a commit with the state."""
_UNTOLD = ("ranges", "begin")
"""The fields of states that nothing needs of an older version. Ranges grow with the table."""
_RESTORE = "RESTORE"
"""The operation of a commit that makes an older version the newest one."""


def positions_of(commits: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return what commits say, by version, without those of others. The newest is the first.

    Those that a restored version is without are left out.
    """
    found: dict[int, dict[str, Any]] = {}
    kept = float("inf")
    for each in commits:
        if each["version"] > kept:
            continue
        if each.get("operation") == _RESTORE:
            kept = _restored_version(each, commits)
        elif _STATE in each:
            found[each["version"]] = each[_STATE]
    return found


def require_no_restore(address: str, commits: Sequence[Mapping[str, Any]]) -> None:
    """Raise StreamError if one of the commits has restored an older version of a table."""
    if any(each.get("operation") == _RESTORE for each in commits):
        raise restored_error(address)


def restored_error(address: str) -> StreamError:
    """Return the error for a table that lacks batches because an older version was restored."""
    return StreamError(
        f"an older version of the table at {address} was restored, so it lacks batches that the "
        "job does not write again: restore the version before that, remove the table current for "
        "job rebuild to make it again, or start a job in another folder"
    )


def _restored_version(restored: Mapping[str, Any], commits: Sequence[Mapping[str, Any]]) -> int:
    """Return which version a commit has restored, given by its number or by a time."""
    given = restored["operationParameters"]
    if (version := given.get("version")) is not None:
        return int(version)
    until = int(given.get("datetime", 0))
    older = (each["version"] for each in commits if each["timestamp"] <= until)
    return max(older, default=-1)


def action_of(part: Mapping[str, Any]) -> AddAction:
    """Return what a commit says of a file that `parquet_parts` has written."""
    return AddAction(
        path=part["path"],
        size=part["size"],
        partition_values=json.loads(part["partition"]),
        modification_time=part["modified"],
        data_change=True,
        stats=part["stats"],
    )


def told(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a commit says of a state, which is what older versions are asked for."""
    return {name: each for name, each in state.items() if name not in _UNTOLD}


def properties_of(
    state: Mapping[str, Any], transactions: Sequence[Transaction]
) -> CommitProperties:
    """Return what a commit says beside the files."""
    return CommitProperties({_STATE: told(state)}, app_transactions=[*transactions])


def compacted(files: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Return the filter of the partitions that are compacted, from what the log says of the files.

    delta-rs would not find the files that it writes for a value with a ~, of which none is
    compacted any more.
    """
    left: dict[str, set[str]] = {}
    for column, value in (pair for file in files for pair in file.items()):
        table, dot, name = column.partition(".")
        if table == "partition" and dot and isinstance(value, str) and "~" in value:
            left.setdefault(name, set()).add(value)
    return [(name, "not in", sorted(values)) for name, values in left.items()]
