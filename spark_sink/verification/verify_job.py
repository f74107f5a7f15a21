"""Verifies all tables of a job, and reports what each was compared with, and the differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

from bson.timestamp import Timestamp
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from shard_client.bson.resume_token import cluster_time_of
from spark_sink.errors import HistoryLostError, OptionError, SourceError, StreamError
from spark_sink.events.positions import AtTime, after, key_of
from spark_sink.jobs.checkpoint import LoggedBatch
from spark_sink.jobs.failure_texts import cause_of
from spark_sink.jobs.history.job_history import snapshot_ends
from spark_sink.jobs.history.newest_batch import lacking_tables
from spark_sink.jobs.job_folder import JobFolder, JobRecord
from spark_sink.jobs.job_tables import (
    BRONZE,
    CURRENT,
    MESSAGES,
    NOTIFICATIONS,
    QUARANTINE,
    TRANSACTIONS,
)
from spark_sink.options.scope import namespace_options
from spark_sink.options.stream_options import parse_options
from spark_sink.rows.checksum import NO_ROWS, Checksum
from spark_sink.snapshot.unread import unread_names
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.executors import rows_of, run_tasks
from spark_sink.tables.parquet_parts import BATCH
from spark_sink.tables.places import KEY_RANGE
from spark_sink.tables.table_form import TableForm
from spark_sink.tables.table_state import Batch
from spark_sink.tables.table_version import existing_files
from spark_sink.verification.collection_comparison import COMMAND, Comparison, document_options
from spark_sink.verification.differences import DIFFERENCES, column_differences, rows_checksum
from spark_sink.verification.stream_comparison import (
    MARKS,
    bronze_differences,
    events_of,
    message_differences,
    transaction_differences,
)

_OF_STREAM = (BRONZE, MESSAGES, TRANSACTIONS)
"""The tables that are compared with the stream."""


@dataclass
class Outcome:
    """The outcome of the verification of a table.

    Args:
        count: the number of differences.
        first: the first differences.
        compared: what was compared with what, as lines.
        remarks: why something was not compared.
        failed: whether one of the remarks is a failure.
    """

    count: int = 0
    first: list[Mapping[str, Any]] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    failed: bool = False

    def to_document(self) -> dict[str, Any]:
        """Return the outcome for json.dumps."""
        document = {"differences": self.count, "first": self.first, "compared": self.compared}
        return {**document, "remark": self.remark, "failed": self.failed}

    @property
    def remark(self) -> str:
        """The remarks as one text."""
        return "; ".join(self.remarks)

    def add(self, count: int, rows: Iterable[Mapping[str, Any]], shown: int) -> None:
        """Count differences, of which `rows` are the first; keep up to `shown` of all."""
        self.count += count
        self.first += islice(rows, max(0, shown - len(self.first)))

    def fail(self, remark: str) -> None:
        """Note a failure."""
        self.failed = True
        self.remarks.append(remark)

    def __str__(self) -> str:
        outcome = f"{self.count} differences" if self.count else "no difference"
        rows = (" ".join(str(value) for value in row.values() if value != []) for row in self.first)
        compared = (f"compared: {source}" for source in self.compared)
        lines = [*rows, *compared, *self.remarks]
        if not (self.count or self.compared):
            return self.remark
        return "\n  ".join([outcome, *lines])


def verify_job(
    spark: SparkSession,
    folder: JobFolder,
    uri: str,
    tables: Sequence[str] | None = None,
    since: Timestamp | None = None,
    *,
    rate: float | None = None,
    shown: int = 20,
) -> dict[str, Outcome]:
    """Return the outcome for each table of the job in a folder. Raises SourceError.

    A failure is an outcome as well, so that the other outcomes are reported.

    Args:
        uri: the router.
        tables: which ones; None for all.
        since: the cluster time from which on tables are compared with the stream.
        rate: the most documents and keys a second that are compared with the collections.
        shown: the most differences of a table to return.
    """
    record, last = folder.record(), folder.checkpoint.last_committed()
    logs = {
        name: DeltaLog(folder.table(name)) for name in (*record.tables, QUARANTINE, NOTIFICATIONS)
    }
    lost = _lost_tables(logs, -1 if last is None else last.number)
    wanted = tables or [n for n in logs if n in (*record.tables, *lost) or logs[n].exists]
    for name in wanted:
        if name not in logs:
            has = ", ".join(logs)
            raise OptionError(f"the job in {folder.address} has no table {name}, but {has}")
    outcomes = {name: Outcome() for name in wanted}
    for name, outcome in outcomes.items():
        if name in lost:
            outcome.fail("the table lacks batches of the job: the next start says what to do")
        if not logs[name].exists:
            outcome.remarks.append("not compared: there is no Delta table yet")
    present = {name: logs[name] for name in outcomes if logs[name].exists}
    options = record.source_options(uri)
    job = _Verification(spark, folder.address, record, options, present, outcomes, shown)
    for name in present:
        job.compare_with_written(name)
    if last is None or last.end.scope not in (None, parse_options(options).scope):
        new = "" if last is None else " with the collections of the last start"
        job.remark((CURRENT, *_OF_STREAM), f"no batch is committed yet{new}")
        return outcomes
    job.compare_with_stream(last, since)
    job.compare_with_collections(rate)
    return outcomes


@dataclass
class _Verification:
    """Compares tables of a job, and notes in their outcomes what was found.

    Args:
        folder: the job's.
        options: of its source, with `uri`.
        logs: the tables that exist, by name.
        shown: the most differences of a table that are kept.
    """

    spark: SparkSession
    folder: str
    record: JobRecord
    options: Mapping[str, str]
    logs: Mapping[str, DeltaLog]
    outcomes: Mapping[str, Outcome]
    shown: int

    @contextmanager
    def _failures(self, *names: str) -> Iterator[None]:
        """Note a failure of Spark or of the source in the outcomes of these tables."""
        try:
            yield
        except (SourceError, PySparkException, OSError) as error:
            for name in names:
                self.outcomes[name].fail(f"not compared: {cause_of(error)}")

    def _add(self, name: str, differences: DataFrame) -> None:
        """Note differences in the outcome of a table."""
        persisted = differences.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            rows = (row.asDict() for row in persisted.take(self.shown))
            self.outcomes[name].add(persisted.count(), rows, self.shown)
        finally:
            persisted.unpersist()

    def compare_with_written(self, name: str) -> None:
        """Compare the checksum of a table's rows with that of those that were written."""
        log, outcome = self.logs[name], self.outcomes[name]
        with self._failures(name):
            rows = log.state().checksum.rows
            if difference := checksum_difference(self.spark, log):
                outcome.add(1, [difference], self.shown)
            exchanged = [{"difference": "file", "path": path} for path in exchanged_files(log)]
            outcome.add(len(exchanged), exchanged, self.shown)
            outcome.compared.append(f"all rows with the checksum of the {rows:,} that were written")

    def compare_with_collections(self, rate: float | None) -> None:
        """Compare the current table, if there is one, at the rate of `verify_job`."""
        if CURRENT not in self.logs:
            return
        log, outcome, record = self.logs[CURRENT], self.outcomes[CURRENT], self.record
        with self._failures(CURRENT):
            given = document_options({**namespace_options(record.namespaces), **self.options})
            given = {"uri": self.options["uri"], **given}
            comparison = Comparison(self.spark, log.address, given, rate, self.shown)
            compared = comparison.compare(self.folder, COMMAND)
            rows = ({name: row[name] for name in row if name != "token"} for row in compared.first)
            outcome.add(compared.count, rows, self.shown)
            log = DeltaLog(log.address)  # hours later, the files of its version may be deleted
            form = replace(
                TableForm.of(log.schema), infers=record.schema == "infer", flattens=record.flatten
            )
            names = form.file_schema.names
            tasks = [
                partial(column_differences, form, table_scan) for table_scan in log.scans(names)
            ]
            self._add(CURRENT, rows_of(self.spark, tasks, DIFFERENCES).drop("token"))
            begun = compared.through.as_datetime().isoformat()
            now = datetime.now(UTC).isoformat(timespec="seconds")
            outcome.compared.append(
                f"the documents with the collections, from {begun} to {now} "
                f"({compared.rows:,} rows and keys), and with their columns"
            )
            if names := unread_names(log.state().unread):
                outcome.remarks.append(f"not compared: {names}, which the job must read again")

    def compare_with_stream(self, last: LoggedBatch, since: Timestamp | None) -> None:
        """Compare the rows of tables up to a batch with the stream, from a time on if it is given.

        Without it the comparison begins with the first event of the tables.
        """
        compare: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
            BRONZE: bronze_differences,
            MESSAGES: partial(message_differences, options=self.record.messages),
            TRANSACTIONS: transaction_differences,
        }
        names = [name for name in _OF_STREAM if name in self.logs]
        if not names:
            return
        if last.end.is_in_snapshot:
            self.remark(names, "the snapshot has not ended yet")
            return
        until = F.coalesce(F.col(BATCH) <= last.number, F.lit(True))
        rows, tokens = dict[str, DataFrame](), list[str]()
        for name in names:
            with self._failures(name):
                is_event = ~_token(name).rlike(MARKS)
                table = self.logs[name].read(self.spark).where(until & is_event)
                tokens += _first_tokens(name, self.logs[name], table)
                rows[name] = table
        if not tokens:
            return
        first = min(tokens) if since is None else key_of(AtTime(since))
        if last.end.since is not None:
            first = max(first, key_of(AtTime(last.end.since)))
        if self.record.since:  # the job has read the events up to this token with other options
            first = max(first, f"{self.record.since}0")
        if first > key_of(last.end.position):
            self.remark(rows, "the job has read no event yet of the time to compare")
            return
        with self._failures(*rows):
            try:
                events = events_of(self.spark, self.options, first, last.end.position)
            except HistoryLostError:
                reason = (
                    f"the oplogs no longer contain {_iso(first)}, with which the comparison "
                    "begins. Pass a later time with --since"
                )
                self.remark(rows, reason)
                return
            begin, end = map(_iso, (first, key_of(last.end.position)))
            events.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                for name, table in rows.items():
                    with self._failures(name):
                        stored = table.where(_token(name) >= first)
                        self._add(name, compare[name](stored, events))
                        compared = f"the events from {begin} to {end} with the stream"
                        self.outcomes[name].compared.append(compared)
            finally:
                events.unpersist()

    def remark(self, names: Iterable[str], why: str) -> None:
        """Say why tables, as far as they exist, are compared with their checksums only."""
        for name in self.logs.keys() & {*names}:
            other = "collections" if name == CURRENT else "stream"
            self.outcomes[name].remarks.append(f"not compared with the {other}: {why}")


def checksum_difference(spark: SparkSession | None, log: DeltaLog) -> Mapping[str, Any] | None:
    """Return how the rows of a version differ from what was written; None if they do not.

    This finds damage of any age in any column, also if no oplog has the events any more. Without
    `spark` the work is done in this process. Raises StreamError and OSError.
    """
    names = [name for name in log.schema.names if name != KEY_RANGE]
    tasks = [partial(rows_checksum, part) for part in log.scans(names)]
    checksum = sum(run_tasks(spark, Checksum, tasks, f"parts of {log.name} read"), NO_ROWS)
    written = log.state().checksum
    if checksum == written:
        return None
    return {"difference": "checksum", "rows": checksum.rows, "written": written.rows}


def exchanged_files(log: DeltaLog) -> list[str]:
    """Return the files whose size is not that in the log, by whose statistics readers skip files.

    The checksum of the rows does not tell whether two files have changed places. Raises OSError.
    """
    sizes = {file.path: file.size for file in log.files_with()}
    portions = existing_files(log.address, sizes, f"files of {log.name} looked up")
    intact = {file.path for files in portions for file in files if file.size == sizes[file.path]}
    return sorted(sizes.keys() - intact)


def _lost_tables(logs: Mapping[str, DeltaLog], done: int) -> list[str]:
    """Return the tables that are lost, or older than batch `done`, which is complete."""
    by_table: dict[str, Batch] = {}
    for name, log in logs.items():
        with suppress(StreamError):  # which the comparison of the table reports
            by_table[name] = log.state().batch
    return lacking_tables(by_table, done)


def _token(name: str) -> Column:
    """Return the column with the token of the event, or of the first one, of a table's rows."""
    return F.col("first_token" if name == TRANSACTIONS else "token")


def _first_tokens(name: str, log: DeltaLog, rows: DataFrame) -> Iterator[str]:
    """Return where the events of a table begin: with its first one, or after the first snapshot."""
    if name == BRONZE:
        ends = sorted(
            (end for end in snapshot_ends(log) if not end.get("requested")),
            key=lambda event: str(event["_id"]["_data"]),
        )
        yield from (key_of(after(end["clusterTime"])) for end in ends[:1])
    least = rows.agg(F.min(_token(name))).collect()[0][0]
    if least is not None:
        yield least


def _iso(token: str) -> str:
    """Return the time of a token as a text; empty for an empty token."""
    return cluster_time_of(token).as_datetime().isoformat() if token else ""
