"""Where a job is: its tables alone know that, each by the newest batch that it has.

A checkpoint may be lost, truncated, or an older copy. One that says something else is made again
from their commits, which contain the offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from operator import attrgetter

from spark_sink.errors import OptionError, StreamError
from spark_sink.jobs.checkpoint import LoggedBatch
from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import (
    APPENDED,
    BRONZE,
    CURRENT,
    MESSAGES,
    NOTIFICATIONS,
    QUARANTINE,
    with_all_batches,
)
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.table_state import Batch


def newest_batch(folder: JobFolder) -> tuple[Batch, bool]:
    """Return the newest batch of a job's tables, and whether all of them have it, with one end.

    It is that of the first table which has it: there an interrupted seek has begun. Without a job
    it is `Batch()`. Raises OptionError if a table lacks an earlier batch, or one that Spark has
    committed, if the tables are not of one query, or the checkpoint is that of another one, or is
    damaged without a batch in the tables; and StreamError if an older version of a table was
    restored.
    """
    return _place(folder)[0]


def restored_batch(folder: JobFolder) -> LoggedBatch | None:
    """Return the newest batch of the checkpoint as the next start restores it; None before any.

    A batch that only some tables have is repeated, and one that none of them has is planned again.
    Raises OptionError and StreamError as `newest_batch`.
    """
    return _place(folder)[1]


def restore_checkpoint(folder: JobFolder) -> tuple[Batch, bool]:
    """Make the checkpoint of a job from its tables; return their `newest_batch`.

    One that says the same keeps the times of its commits. Until the tables have a batch it is kept,
    as it tells where the job begins. Raises OptionError and StreamError as `newest_batch`.
    """
    newest, _, is_kept = _place(folder)
    last, is_whole = newest
    if is_kept:
        folder.checkpoint.remove_checksums()
        return newest
    offsets = {last.number - 1: last.begin} if last.number else {}
    offsets[last.number] = last.offset
    folder.checkpoint.write(last.query, offsets, last.number if is_whole else last.number - 1)
    return newest


def _place(folder: JobFolder) -> tuple[tuple[Batch, bool], LoggedBatch | None, bool]:
    """Return `newest_batch`, `restored_batch`, and whether the checkpoint has that one now."""
    checkpoint, query, planned, begin, damage = folder.checkpoint, None, None, None, None
    try:  # before the tables: what it shows they have, also while the job runs
        query, planned = checkpoint.query(), checkpoint.last_planned()
        if planned is not None:  # Spark reads the end of the batch before it, too
            begin = checkpoint.offset(planned.number - 1)
    except StreamError as error:
        damage = error
    newest = last, is_whole = _in_tables(folder, query, planned)
    if not last.query:
        if damage is not None:
            raise OptionError(
                f"{damage}. But these contain no batch yet to continue from: remove the "
                f"folder {checkpoint.address}, and start the job again"
            )
        return newest, planned, True
    if query not in (None, last.query):
        raise OptionError(
            f"the checkpoint {checkpoint.address} is not that of the tables in "
            f"{folder.address}: remove it, and the next start makes it again from the tables"
        )
    is_same = planned and planned.committed and (begin, planned.offset) == (last.begin, last.offset)
    if query and is_whole and is_same:
        return newest, planned, True
    committed = datetime.now(UTC) if is_whole else None
    return newest, LoggedBatch(last.number, {**last.offset}, committed), False


def _in_tables(
    folder: JobFolder, query: str | None, planned: LoggedBatch | None
) -> tuple[Batch, bool]:
    """Return `newest_batch` by the tables, and by what the checkpoint shows that they have had."""
    if not folder.exists:
        return Batch(), True
    names = {*folder.record().tables, QUARANTINE, NOTIFICATIONS}
    logs = {name: DeltaLog(folder.table(name)) for name in (*APPENDED, CURRENT) if name in names}
    for name, log in logs.items():
        log.require_not_restored(name if name in (BRONZE, MESSAGES) else "")
    by_table = {name: log.state().batch for name, log in logs.items()}
    last = max(by_table.values(), key=attrgetter("number"))
    if {batch.query for batch in by_table.values()} - {"", last.query}:
        raise OptionError(
            f"the tables of the job in {folder.address} are not of one query: restore the folder "
            "from a backup, or start the job in another one"
        )
    done = last.number - 1
    if planned is not None and last.query in ("", query):
        is_of_seek = planned.number == last.number and planned.offset != last.offset
        done = max(done, planned.number - (is_of_seek or planned.committed is None))
    if lacking := lacking_tables(by_table, done):
        if any(log.reload() for log in logs.values()):
            return _in_tables(folder, query, planned)  # the job has written a batch meanwhile
        remedy = "restore it from a backup"
        if lacking[0] == CURRENT and BRONZE in names:
            remedy = "remove what is left of it and let job rebuild make it again"
        if last.query and not lacking_tables(by_table, last.number - 1):  # all are of one time
            remedy += f" (if all tables are of one backup, remove {folder.checkpoint.address})"
        raise OptionError(
            f"the table at {folder.table(lacking[0])} lacks batches that the job has written to "
            f"it: {remedy}, or start a job in another folder"
        )
    offsets = [batch.offset for batch in by_table.values() if batch.number == last.number]
    is_one = all(offset == last.offset for offset in offsets)  # no seek was interrupted
    return last, is_one and not lacking_tables(by_table, last.number)


def lacking_tables(by_table: Mapping[str, Batch], done: int) -> list[str]:
    """Return the names of tables that lack a batch, if the batches up to `done` are complete.

    `by_table` has the newest batch of each table by name. What current cannot apply is in the
    quarantine before current has the batch, and a repeated batch does not write it again.
    """
    needed = dict.fromkeys(with_all_batches(by_table), done)
    for owner, batch in by_table.items():
        for name, number in batch.written.items():
            if number <= done or (owner, name) == (CURRENT, QUARANTINE):
                needed[name] = max(needed.get(name, -1), number)
    return [n for n, number in needed.items() if by_table.get(n, Batch()).number < number]
