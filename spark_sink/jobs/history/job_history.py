"""The history of a job's tables, as their commits tell it: what the tables had at a cluster time.

A cut is a cluster time: the events before it count. A transaction over several shards may have
commit times a tick apart (docs/protocol.md#events), so a cut that divides one moves before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby
from typing import Any

import bson
import pyarrow.compute as pc
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import cluster_time_of, high_water_mark
from spark_sink.errors import StreamError
from spark_sink.events.header import SNAPSHOT_END
from spark_sink.events.positions import AtTime, after, key_of, time_of
from spark_sink.folders import Folder
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_tables import BRONZE, CURRENT, MESSAGES, QUARANTINE, TOKENS
from spark_sink.jobs.task_writer import COUNT_COLUMNS, Transactions
from spark_sink.options.scope import Scope
from spark_sink.source.offsets import Offset
from spark_sink.tables.ddl_events import TableScope
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import REPORT_PROGRESS
from spark_sink.tables.fold import COMMIT_SECONDS
from spark_sink.tables.parquet_parts import BATCH, RowFilter
from spark_sink.tables.state_files import commit_path, states_in
from spark_sink.tables.table_state import TableState

Versions = Mapping[str, tuple[int, TableState]]
"""The numbers of versions and their states, by table."""


class JobHistory:
    """The commits of a job's tables: which batches they have, and where these end.

    There may be many commits: it reads only those that it needs.

    Args:
        time: a cluster time. Raises StreamError unless the tables have all events up to it.
        tables: those of the job by default.
    """

    def __init__(
        self, folder: JobFolder, time: Timestamp, tables: Sequence[str] | None = None
    ) -> None:
        self._folder, self._time, self.record = folder, time, folder.record()
        logs = {n: DeltaLog(folder.table(n)) for n in tables or (*self.record.tables, QUARANTINE)}
        self.logs = {name: log for name, log in logs.items() if log.exists}
        # The tables that have all batches: to the others only some append rows.
        self._with_all = [name for name in (CURRENT, BRONZE, MESSAGES) if name in self.logs]
        for log in self.logs.values():
            log.require_not_restored()
        self._require_reached()

    def whole_cut(self) -> Timestamp:
        """Return the latest cut, at or before the time's end, that divides no transaction."""
        cut = after(self._time).time
        while (first := self._divided_by(key_of(AtTime(cut)))) is not None:
            cut = cluster_time_of(first)
        return cut

    def complete_before(self, cut: Timestamp) -> Iterator[tuple[int, Offset, Versions]]:
        """Return the complete batches that end before a cut and that all tables have, newest first.

        Each is its number, its end, and the versions of the tables that it has left.
        """
        for read, (state, end) in enumerate(self._before(cut), 1):
            number = state.batch.number
            REPORT_PROGRESS.get()("batches before the time read", read, number + read)
            versions = self._versions(number) if _is_complete(state, end) else {}
            newest = {name: state.batch.number for name, (_, state) in versions.items()}
            if all(newest.get(name) == number for name in self._with_all):
                yield number, end, versions

    def whole_before(self) -> tuple[int, Offset, Versions]:
        """Return the newest such batch up to the time that divides no transaction or cluster time.

        Raises StreamError if there is none.
        """
        for batch in self.complete_before(after(self._time).time):
            end = batch[1]
            key = key_of(end.position)
            if self._divided_by(key) is None and not self._has_events(key, cut_of(end)):
                return batch
        raise self.no_versions_error()

    def rows_before(self, cut: Timestamp, name: str) -> RowFilter:
        """Return which rows of an appended table count before a cut.

        Without bronze, the current table has the events of whole batches, and so have the others.
        """
        chosen: list[tuple[str, str, Any]] = [(TOKENS[name], "<=", high_water_mark(cut))]
        if CURRENT in self.logs and BRONZE not in self.logs:
            newest = next((number for number, *_ in self.complete_before(cut)), -1)
            chosen.append((BATCH, "<=", newest))
        return chosen

    def scope(self, cut: Timestamp) -> TableScope | None:
        """Return the table's scope after the newest batch before a cut, if its commit is kept.

        A collection also counts as unread if a snapshot has read it, but until after the cut.
        Raises StreamError if the job has left out events before the cut, and not read the
        collections since.
        """
        ends = (end for _, end in self._before(cut))
        end = next(ends, Offset(AtTime(cut)))
        if end.sought is not None:
            raise StreamError(
                f"the job in {self._folder.address} has left out the events from "
                f"{cut_of(Offset(end.sought)).as_datetime().isoformat()} to "
                f"{cut_of(end).as_datetime().isoformat()}: give an earlier or a later time"
            )
        scope, log = scope_at(self.record, end), self.logs.get(BRONZE)
        if scope is None or log is None:
            return scope
        late = {end.get("requested") for end in snapshot_ends(log) if end["readUntil"] >= cut}
        before = (end.unread_by_request.items() for end in ends) if late else ()
        unread = (tokens.items() for each in before for request, tokens in each if request in late)
        return replace(scope, unread={**dict(chain.from_iterable(unread)), **scope.unread})

    def no_versions_error(self) -> StreamError:
        """Return the error for a time without versions."""
        return StreamError(
            f"the job in {self._folder.address} has no versions of "
            f"{self._time.as_datetime().isoformat()}: no batch had followed the snapshot, or their "
            "commits are deleted. Give a later time, or make the table again with job rebuild --to"
        )

    def _states(
        self, name: str, is_before: Callable[[TableState], bool]
    ) -> Iterator[tuple[int, TableState]]:
        """Return versions of a table by its present query, the newest first, and their states.

        The first is the newest one whose state `is_before`, as the states of all older ones are. A
        binary search finds it, and older commits are read as the caller iterates. Versions of other
        queries, and those whose commits a clean-up has removed, are left out. If it has removed
        all, the newest version remains.
        """
        log, newest = self.logs[name], self.logs[name].state()
        folder, query, version = Folder(log.address), newest.batch.query, -1

        def is_later(version: int) -> bool:
            _, state = next(states_in(folder, version), (0, TableState()))
            return state.batch.query == query and not is_before(state)

        with log.stream_errors():
            every = range(0 if log.version is None or not query else log.version + 1)
            first = bisect_left(every, True, key=is_later)
            for version, state in states_in(folder, first - 1):
                if state.batch.query != query:
                    return
                yield version, state
            if version < 0 and 0 < first == len(every) and is_before(newest):
                yield first - 1, newest

    def _before(self, cut: Timestamp) -> Iterator[tuple[TableState, Offset]]:
        """Return the batches that end before a cut, the newest first: a table's state, and the end.

        The table is one that has all batches.
        """

        def is_before(state: TableState) -> bool:
            end = state.batch.end
            if end is not None and end.sought is not None:  # it leaves out the events after that
                return cut_of(Offset(end.sought)) < cut
            return end is None or end.time is None or cut_of(end) <= cut

        for name in self._with_all[:1]:
            walk = (state for _, state in self._states(name, is_before))
            for _, (state, *_) in groupby(walk, lambda state: state.batch.number):
                if (end := state.batch.end) is not None and end.time is not None:
                    yield state, end

    def _require_reached(self) -> None:
        """Raise StreamError unless the tables have all events of the time."""
        ends = (self.logs[name].state().batch.end for name in self._with_all)
        reached = [end.position for end in ends if end is not None and end.time is not None]
        first = min(reached, key=key_of, default=None)
        if first is None or key_of(first) < key_of(after(self._time)):
            moment = None if first is None else time_of(first)
            text = "no cluster time" if moment is None else moment.as_datetime().isoformat()
            raise StreamError(
                f"the tables of the job in {self._folder.address} have reached {text} only: give "
                "an earlier time, or let the job run on; job wait --to makes it advance if nothing "
                "happens"
            )

    def _has_events(self, key: str, cut: Timestamp) -> bool:
        """Return whether bronze has events after a key and before a cut."""
        if BRONZE not in self.logs:
            return False
        chosen = [("token", ">", key), ("token", "<", key_of(AtTime(cut)))]
        return any(rows.num_rows for rows in self.logs[BRONZE].rows(["token"], chosen))

    def _divided_by(self, key: str) -> str | None:
        """Return the first token of the transactions with events before and after a key, if any."""
        if BRONZE not in self.logs:
            return None
        time = cluster_time_of(key)
        low = key_of(AtTime(Timestamp(max(0, time.time - COMMIT_SECONDS), 0)))
        high = key_of(AtTime(Timestamp(time.time + COMMIT_SECONDS, 0)))
        chosen = [("token", ">", low), ("token", "<", high), pc.field("txnNumber").is_valid()]
        counted = Transactions()
        for rows in self.logs[BRONZE].rows(COUNT_COLUMNS, chosen):
            counted.count(rows)
        spans = [(each["first"], each["last"]) for each in counted.by_id.values()]
        return min((first for first, last in spans if first <= key < last), default=None)

    def _versions(self, batch: int) -> Versions:
        """Return the newest version of each table that has no later batch, if it had one then.

        Raises StreamError if the commit that shows this has been deleted.
        """
        versions = {}
        for name, log in self.logs.items():
            version = next(self._states(name, lambda state: state.batch.number <= batch), None)
            if version is not None:
                versions[name] = version
            elif log.state().batch.query and not Folder(log.address).has(commit_path(0)):
                raise self.no_versions_error()
        return versions


def _is_complete(state: TableState, end: Offset) -> bool:
    """Return whether a table had all documents as of its batch's end: no older and no later ones.

    A row that a snapshot has read is newer than its batch until the stream passes its time.
    """
    if end.snapshots.requests or end.snapshots.batch.reading or end.sought:
        return False
    marks = [mark for mark in (state.complete_from, *state.complete_in.values()) if mark]
    return not state.unread and all(cluster_time_of(mark) <= cut_of(end) for mark in marks)


def cut_of(end: Offset) -> Timestamp:
    """Return the first cluster time whose events a batch does not have completely."""
    assert end.cut is not None
    return end.cut


def scope_at(record: JobRecord, end: Offset) -> TableScope | None:
    """Return the scope of a table whose job has reached an offset; None if it reads no documents.

    Its collections `unread` are those that the job was about to read.
    """
    if not record.snapshot.policy.reads_documents:
        return None
    return TableScope((end.scope or Scope()).accepts, end.unread_at_end)


def snapshot_ends(log: DeltaLog) -> list[Mapping[str, Any]]:
    """Return the events of the ends of snapshots in a table of all rows."""
    ended = log.rows(["event"], [("operationType", "==", SNAPSHOT_END)])
    return [bson.decode(event) for rows in ended for event in rows["event"].to_pylist()]
