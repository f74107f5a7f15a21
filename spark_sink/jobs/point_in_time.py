"""Consistent reads of all tables of a job at one cluster time: their versions, or their rows.

A cut is a cluster time: the events before it count. A transaction over several shards may have
commit times a tick apart (docs/protocol.md#events), so a cut that divides one moves before it.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

import bson
import pyarrow as pa
import pyarrow.compute as pc
from bson.timestamp import Timestamp
from pyspark.sql import DataFrame, SparkSession

from shard_client.bson.resume_token import cluster_time_of, high_water_mark
from spark_sink.errors import StreamError
from spark_sink.events.documents import from_document
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.events.positions import AtTime, after, key_of, time_of
from spark_sink.folders import Folder
from spark_sink.jobs.job_folder import (
    BRONZE,
    CURRENT,
    MESSAGES,
    QUARANTINE,
    TRANSACTIONS,
    JobFolder,
    JobRecord,
)
from spark_sink.jobs.tables_job import table_form
from spark_sink.jobs.task_writer import COUNT_COLUMNS, Transactions
from spark_sink.options.scope import Scope
from spark_sink.options.snapshot_options import snapshot_options
from spark_sink.options.stream_options import named_options
from spark_sink.options.values import argument, cluster_time
from spark_sink.source.offsets import Offset
from spark_sink.tables.advance import Advance
from spark_sink.tables.current_table import CurrentTable
from spark_sink.tables.ddl_events import TableScope, unread_after, unread_names
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import REPORT_PROGRESS
from spark_sink.tables.fold import BASE, COMMIT_SECONDS, TABLE
from spark_sink.tables.parquet_parts import BATCH, Chosen, TableScan
from spark_sink.tables.staged_changes import CHANGE_COLUMNS
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_rows import read_rows, require_whole, scan, scans_of
from spark_sink.tables.table_state import TableState
from spark_sink.tables.version_states import Batch, commit_path, end_of, states_in

_Versions = Mapping[str, tuple[int, dict[str, Any]]]
"""The numbers of versions and their states, by table."""
_TOKENS = {BRONZE: "token", MESSAGES: "token", TRANSACTIONS: "last_token", QUARANTINE: "token"}
"""The column that orders the rows of an appended table."""


@dataclass(frozen=True)
class TableVersions:
    """Versions of a job's tables that stand for one cut: the cluster just before `cut`.

    `batch` is the last batch that they have; `versions` are their numbers by table.
    """

    batch: int
    cut: Timestamp
    versions: Mapping[str, int]


def versions_at(folder: JobFolder, time: Timestamp) -> TableVersions:
    """Return the newest versions of a job's tables that hold nothing from after a cluster time.

    Each holds all events before one cut, and every transaction whole. Raises StreamError if the
    tables have not reached the time, or if the versions of that time have been deleted.
    """
    history = _History(folder, time)
    batch, end, whole = history.whole_before(after(time).time)
    for name, (version, state) in whole.items():
        history.logs[name].at(version, state)
    versions = {name: version for name, (version, _) in whole.items()}
    return TableVersions(batch, _cut_of(end), versions)


def read_at(spark: SparkSession, out: str, time: str) -> dict[str, DataFrame]:
    """Return the rows of a job's tables by name, as they were at one cluster time.

    They have all events up to that time, and every transaction whole. `current` is an older version
    of the table, or else a snapshot in `bronze`, with the later events of `bronze` applied. In a
    job without bronze it is the version of the last batch before the time. Raises OptionError for a
    text that is not a time, and StreamError as `versions_at`.

    Args:
        out: the job's folder.
        time: such as 2026-01-31T12:00:00Z, or "seconds,increment".
    """
    folder = JobFolder(out)
    moment = argument(cluster_time, time, "time")
    history = _History(folder, moment)
    cut = history.whole_cut(after(moment).time)
    frames: dict[str, DataFrame] = {}
    for name in history.logs.keys() & _TOKENS.keys():
        chosen = history.rows_before(cut, name)
        frames[name] = read_rows(spark, history.logs[name], chosen=chosen)
    if CURRENT not in history.logs:
        return frames
    table = CurrentTable.existing(folder.table(CURRENT), table_form(folder.record()))
    rows, since = spark.createDataFrame([], TABLE).select(*BASE), -1
    for batch, _, versions in islice(history.complete_before(cut), 1):
        try:
            older = history.logs[CURRENT].at(*versions[CURRENT])
        except StreamError:  # its files have been deleted
            if BRONZE not in frames:
                raise
        else:
            base_columns = TableForm.of(older.schema).base_columns
            rows, since = read_rows(spark, older, base_columns), batch
            if BRONZE not in frames:
                frames[CURRENT] = read_rows(spark, older)
    if BRONZE in frames:
        bronze = history.logs[BRONZE]
        if since < 0:
            _require_begun(bronze, folder.record(), cut)
        later = [*_counts_before(bronze, cut), (BATCH, ">", since)]
        changes = read_rows(spark, bronze, (*CHANGE_COLUMNS, "op"), later)
        advance = Advance(table.state.keys, changes, table.form)
        frames[CURRENT] = advance.of_table(rows)
        scope = history.scope(cut)
        events = advance.ddl_events
        unread = unread_after(scope.unread, events, scope.contains) if scope is not None else {}
        if names := unread_names(unread):
            warnings.warn(f"current lacks documents of {names}: {UNREAD_THEN}", stacklevel=2)
    if CURRENT not in frames:
        raise history.no_versions_error()
    return frames


UNREAD_THEN = "at this time the job had not read them again yet. Give a later time"
"""Why collections are not complete in a table of an earlier time, and the remedy."""


def _scope_at(record: JobRecord, end: Offset) -> TableScope | None:
    """Return the scope of a table whose job has reached an offset; None if it reads no documents.

    Its collections `unread` are those that the job was about to read.
    """
    if not snapshot_options(named_options(record.options)).policy.reads_documents:
        return None
    return TableScope((end.scope or Scope()).accepts, end.unread_at_end)


def bronze_at(
    folder: JobFolder, time: Timestamp | None
) -> tuple[list[TableScan], Batch, TableScope | None]:
    """Return the rows of bronze from which a current table is made: all, or those up to a time.

    Also return the newest batch of bronze, with the offset of that time, and the table's scope.
    Raises StreamError if bronze has not reached the time, or begins later.
    """
    log, cut = DeltaLog(folder.table(BRONZE)), None
    chosen: Chosen = ()
    require_whole(log, BRONZE)
    batch = log.batch()
    if time is None:
        scope = _scope_at(folder.record(), Offset.of(batch.offset))
    else:
        history = _History(folder, time, (BRONZE,))
        cut = history.whole_cut(after(time).time)
        batch = Batch(batch.query, batch.number, Offset(AtTime(cut)).document)
        chosen, scope = _counts_before(log, cut), history.scope(cut)
    _require_begun(log, folder.record(), cut)
    return scans_of(log, CHANGE_COLUMNS, chosen), batch, scope


def snapshot_ends(log: DeltaLog) -> list[Mapping[str, Any]]:
    """Return the events of the ends of snapshots in a table of all rows."""
    ended = scan(log, ["event"], [("operationType", "==", SNAPSHOT_END)])
    return [bson.decode(event) for rows in ended for event in rows["event"].to_pylist()]


def _counts_before(log: DeltaLog, cut: Timestamp) -> Chosen:
    """Return which rows of bronze count before a cut.

    The end of a snapshot counts if all of it was read before.
    """
    late = [end["_id"]["_data"] for end in snapshot_ends(log) if end["readUntil"] >= cut]
    is_late = pc.field("token").isin(pa.array(late, pa.string()))
    kept = (pc.field("operationType") != SNAPSHOT_END) | ~is_late
    return [kept, ("token", "<=", high_water_mark(cut))]


def _require_begun(log: DeltaLog, record: JobRecord, cut: Timestamp | None = None) -> None:
    """Raise StreamError unless bronze has the job's first snapshot whole, if there was one.

    With a `cut` all of it must have been read before.
    """
    ends = [end["readUntil"] for end in snapshot_ends(log) if not end.get("requested")]
    options = snapshot_options(named_options(record.options))
    begins = options.policy.at_first and not options.custom
    if not ends and begins and Offset.of(log.state()["offset"]).signals.initial_plan is None:
        raise StreamError(
            f"the table at {log.address} does not have the snapshot any more with which the job "
            "began, so no current table can be made of it: start a job in another folder"
        )
    if cut is None:
        return
    reads = scan(log, ["token"], [("operationType", "==", "read")])
    if min(ends, default=cut) >= cut and any(rows.num_rows for rows in reads):
        until = f"until {min(ends).as_datetime().isoformat()}" if ends else "later"
        raise StreamError(
            f"the table at {log.address} begins with a snapshot that was read {until}: give a "
            "later time"
        )


class _History:
    """The commits of a job's tables: which batches they have, and where these end.

    There may be many commits: it reads only those that it needs. `tables` are the tables, by
    default those of the job.
    """

    def __init__(
        self, folder: JobFolder, time: Timestamp, tables: Sequence[str] | None = None
    ) -> None:
        names = tables or [*folder.record().tables, QUARANTINE]
        logs = {name: DeltaLog(folder.table(name)) for name in names}
        self.logs = {name: log for name, log in logs.items() if log.exists}
        self._whole = [name for name in (CURRENT, BRONZE, MESSAGES) if name in self.logs]
        self._folder, self._time = folder, time
        for log in self.logs.values():
            require_whole(log)
        self._require_reached()

    def _states(
        self, name: str, is_before: Callable[[Mapping[str, Any]], bool]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return versions of a table by its present query, the newest first, and their states.

        The first is the newest one whose state `is_before`, as the states of all older ones are. A
        binary search finds it, and older commits are read as the caller iterates. Versions of other
        writers, and those whose commits a clean-up has removed, are left out. If it has removed
        all, the newest version remains.
        """
        log, newest = self.logs[name], self.logs[name].state()
        folder, query, version = Folder(log.address), newest.get("query"), -1

        def is_later(version: int) -> bool:
            _, state = next(states_in(folder, version), (0, {"query": None}))
            return state.get("query") == query and not is_before(state)

        with log.stream_errors():
            every = range(0 if log.version is None or not query else log.version + 1)
            first = bisect_left(every, True, key=is_later)
            for version, state in states_in(folder, first - 1):
                if state.get("query") != query:
                    return
                yield version, state
            if version < 0 and 0 < first == len(every) and is_before(newest):
                yield first - 1, newest

    def _before(self, cut: Timestamp) -> Iterator[tuple[int, Offset, Mapping[str, Any]]]:
        """Return the batches that end before a cut, the newest first, with their ends.

        With each comes the state of the first table that has all batches.
        """

        def is_before(state: Mapping[str, Any]) -> bool:
            end = end_of(state)
            if end is not None and end.sought is not None:  # it leaves out the events after that
                return _cut_of(Offset(end.sought)) < cut
            return end is None or end.time is None or _cut_of(end) <= cut

        for name in self._whole[:1]:
            walk = (state for _, state in self._states(name, is_before))
            for number, (state, *_) in groupby(walk, itemgetter(BATCH)):
                if (end := end_of(state)) is not None and end.time is not None:
                    yield number, end, state

    def _require_reached(self) -> None:
        """Raise StreamError unless the tables have all events of the time."""
        ends = (end_of(self.logs[name].state()) for name in self._whole)
        reached = [end.position for end in ends if end is not None and end.time is not None]
        first = min(reached, key=key_of, default=None)
        if first is None or key_of(first) < key_of(after(self._time)):
            moment = None if first is None else time_of(first)
            text = "no cluster time" if moment is None else f"{moment.as_datetime().isoformat()}"
            raise StreamError(
                f"the tables of the job in {self._folder.address} have reached {text} only: let "
                "the job run on, or give an earlier time. While nothing happens a job advances "
                "after idleAdvanceSeconds"
            )

    def complete_before(self, cut: Timestamp) -> Iterator[tuple[int, Offset, _Versions]]:
        """Return the batches that end before a cut, the newest first, if no snapshot is running.

        All tables have them; with each come its end, and its versions. A row that a snapshot has
        read may be newer than its batch until the stream passes its time.
        """
        for read, (batch, end, state) in enumerate(self._before(cut), 1):
            REPORT_PROGRESS.get()("batches before the time read", read, batch + read)
            versions = self._versions(batch) if _is_complete(end, state) else {}
            newest = {name: state[BATCH] for name, (_, state) in versions.items()}
            if all(newest.get(name) == batch for name in self._whole):
                yield batch, end, versions

    def rows_before(self, cut: Timestamp, name: str) -> Chosen:
        """Return which rows of an appended table count before a cut.

        Without bronze, the current table has the events of whole batches, and so have the others.
        """
        chosen: list[tuple[str, str, Any]] = [(_TOKENS[name], "<=", high_water_mark(cut))]
        if CURRENT in self.logs and BRONZE not in self.logs:
            newest = next((batch for batch, *_ in self.complete_before(cut)), -1)
            chosen.append((BATCH, "<=", newest))
        return chosen

    def whole_before(self, cut: Timestamp) -> tuple[int, Offset, _Versions]:
        """Return the newest of these batches that divides no transaction. Raises StreamError."""
        for batch, end, versions in self.complete_before(cut):
            key = key_of(end.position)
            if self._divided_by(key) is None and not self._has_events(key, _cut_of(end)):
                return batch, end, versions
        raise self.no_versions_error()

    def scope(self, cut: Timestamp) -> TableScope | None:
        """Return the table's scope after the newest batch before a cut, if its commit is kept.

        Its collections `unread` include those that this batch has, but as of a later time. Raises
        StreamError if the job has left out events before the cut, and not read the collections
        since.
        """
        ends = (end for _, end, _ in self._before(cut))
        end = next(ends, Offset(AtTime(cut)))
        if end.sought is not None:
            raise StreamError(
                f"the job in {self._folder.address} has left out the events from "
                f"{_cut_of(Offset(end.sought)).as_datetime().isoformat()} to "
                f"{_cut_of(end).as_datetime().isoformat()}: give an earlier or a later time"
            )
        scope, log = _scope_at(self._folder.record(), end), self.logs.get(BRONZE)
        if scope is None or log is None:
            return scope
        late = {e.get("requested") for e in snapshot_ends(log) if e["readUntil"] >= cut}
        before = (end.unread_by_request.items() for end in ends) if late else ()
        read_late = (pairs for requests in before for name, pairs in requests if name in late)
        return replace(scope, unread={**dict(chain.from_iterable(read_late)), **scope.unread})

    def _has_events(self, key: str, cut: Timestamp) -> bool:
        """Return whether events follow a key before a cut: others of the same cluster time."""
        if BRONZE not in self.logs:
            return False
        chosen = [("token", ">", key), ("token", "<", key_of(AtTime(cut)))]
        return any(rows.num_rows for rows in scan(self.logs[BRONZE], ["token"], chosen))

    def whole_cut(self, cut: Timestamp) -> Timestamp:
        """Return the latest cut, at or before a given one, that divides no transaction."""
        while (first := self._divided_by(key_of(AtTime(cut)))) is not None:
            cut = cluster_time_of(first)
        return cut

    def _divided_by(self, key: str) -> str | None:
        """Return the first token of the transactions that a key divides; None if there is none."""
        if BRONZE not in self.logs:
            return None
        time = cluster_time_of(key)
        low = key_of(AtTime(Timestamp(max(0, time.time - COMMIT_SECONDS), 0)))
        high = key_of(AtTime(Timestamp(time.time + COMMIT_SECONDS, 0)))
        chosen = [("token", ">", low), ("token", "<", high), pc.field("txnNumber").is_valid()]
        counted = Transactions()
        for rows in scan(self.logs[BRONZE], COUNT_COLUMNS, chosen):
            counted.count(rows)
        divided = [
            transaction
            for transaction in counted.by_id.values()
            if transaction["first"] <= key < transaction["last"]
        ]
        return min((transaction["first"] for transaction in divided), default=None)

    def _versions(self, batch: int) -> _Versions:
        """Return the newest version of each table that has no later batch, if it had one then.

        Raises StreamError if the commit that shows this has been deleted.
        """
        versions = {}
        for name, log in self.logs.items():
            version = next(self._states(name, lambda state: state[BATCH] <= batch), None)
            if version is not None:
                versions[name] = version
            elif log.state().get("query") and not Folder(log.address).has(commit_path(0)):
                raise self.no_versions_error()
        return versions

    def no_versions_error(self) -> StreamError:
        """Return the error for a time without versions."""
        return StreamError(
            f"the job in {self._folder.address} has no versions of "
            f"{self._time.as_datetime().isoformat()}: a snapshot was in progress, or their commits "
            "have been deleted. Give a later time, or make the table again with job rebuild --to"
        )


def _cut_of(end: Offset) -> Timestamp:
    """Return the first cluster time whose events a batch does not have completely."""
    assert end.cut is not None
    return end.cut


def _is_complete(end: Offset, state: Mapping[str, Any]) -> bool:
    """Return whether nothing is read beside the stream, or is about to be read after a seek.

    `state` is that of the current table.
    """
    if end.signals.requests or end.signals.reading or end.sought:
        return False
    table = from_document(TableState, state, shared=True) if "keys" in state else TableState(())
    marks = [mark for mark in (table.complete_from, *table.complete_in.values()) if mark]
    return not table.unread and all(cluster_time_of(mark) <= _cut_of(end) for mark in marks)
