"""Runs a stream reader as Spark does, without Spark."""

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import bson
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_sink.jobs.table_commits import Findings
from spark_sink.options.stream_options import StreamOptions, parse_options
from spark_sink.source.readers import MergerouterStreamReader
from spark_sink.tables.current_table import CurrentTable, Upsert
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.staged_changes import ChangeReport, ChangeStage
from spark_sink.tables.table_state import Batch
from tests.harness.until import wait_for

Row = dict[str, Any]


class Batches:
    """The micro-batches of one query.

    Attributes:
        reader: the query's reader.
        offset: the end of the latest batch, as a checkpoint holds it.
        rows: the rows of all batches.
        ends: the events of the rows ``snapshotEnd``, from both readings of each batch.
    """

    def __init__(self, reader: MergerouterStreamReader, offset: Row | None = None) -> None:
        self.reader = reader
        self.offset = reader.initialOffset() if offset is None else offset
        self.rows: list[Row] = []
        self.ends: list[bytes] = []

    def next(self) -> list[Row]:
        """Plan a batch and return its rows; read it twice, as Spark does after a crash."""
        start = self.offset
        end = self.reader.latestOffset(start, ReadAllAvailable())
        self.offset = json.loads(json.dumps(end))
        first, again = (self._read(start, self.offset) for _ in range(2))
        assert first == again
        self.rows += first
        return first

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Run batches until ``done()`` is true; ``what`` names the condition in the failure."""

        def check() -> bool:
            self.next()
            return done()

        wait_for(check, what)

    def kinds(self) -> list[str]:
        """Return the operation types of all rows."""
        return [row["operationType"] for row in self.rows]

    def _read(self, start: Row, end: Row) -> list[Row]:
        rows = []
        for partition in self.reader.partitions(start, end):
            sent = pickle.loads(pickle.dumps(partition))
            for batch in self.reader.read(sent):
                found = batch.to_pylist()
                rows += [_comparable(row) for row in found]
                ends = [row["event"] for row in found if row["operationType"] == "snapshotEnd"]
                self.ends += ends
        return rows


class TableQuery:
    """A query whose batches make a current table, and whose process can be killed.

    Attributes:
        options: those of the next start.
        reader: the reader of this start.
        offset: the end of the latest batch, as a checkpoint holds it.
        operations: the operation types of the rows of all batches.
        notified: the id, the aggregate type and the type of each notification.
    """

    def __init__(
        self,
        options: StreamOptions,
        target: str,
        *,
        begun: float = 0.0,
        most: int = 40,
        findings: Findings | None = None,
    ) -> None:
        self.options = options
        self.reader = MergerouterStreamReader(options, begun)
        self._target, self._most, self._findings = target, most, findings
        last = DeltaLog(target).state().batch
        self.offset: Row = {**last.offset} or self.reader.initialOffset()
        self._number = last.number
        self.operations: list[str | None] = []
        self.notified: list[tuple[str, str, str]] = []

    def kill(self) -> None:
        """Start again, as after a kill of the process."""
        self.reader.stop()
        self.reader = MergerouterStreamReader(self.options, 0.0)

    def batch(self, killed: bool = False, again: Row | None = None) -> Row:
        """Run a batch, or ``again`` a planned one; with ``killed``, kill a first attempt."""
        end: Row = again or json.loads(
            json.dumps(self.reader.latestOffset(self.offset, ReadMaxRows(self._most)))
        )
        self.planned = end
        if killed:
            self._staged(end)
            self.kill()
        if end != self.offset:
            changes, operations = self._staged(end)
            self.operations += operations
            told = end.get("snapshots", {}).get("batch", {}).get("notifications", [])
            self.notified += [(each["id"], each["aggregate_type"], each["type"]) for each in told]
            self._number += 1
            findings, changed = self._findings, [changes]
            batch = Batch("q", self._number, end)
            if findings is not None:
                batch = replace(batch, verified=findings.verified)
                changed.append(findings.removals())
            CurrentTable(self._target).apply_staged(
                None, Upsert(ChangeReport.total(changed), batch)
            )
        self.reader.commit(end)
        self.offset = end
        return end

    @property
    def table(self) -> dict[tuple[str, str], Row]:
        """The documents by collection and key; each has one row."""
        rows = DeltaTable(self._target).to_pyarrow_table().to_pylist()
        found = {(row["collection"], row["key"]): bson.decode(row["document"]) for row in rows}
        assert len(found) == len(rows)
        return found

    def _staged(self, end: Row) -> tuple[ChangeReport, list[str | None]]:
        stage, operations = ChangeStage(self._target), []
        for partition in self.reader.partitions(self.offset, end):
            for rows in self.reader.read(partition):
                operations += rows["operationType"].to_pylist()
                stage.add(rows)
        return stage.close(), operations


@contextmanager
def batches(options: dict[str, Any], offset: Row | None = None) -> Iterator[Batches]:
    """Run a query with these options, from ``offset`` or from its initial offset."""
    given = parse_options({name: str(value) for name, value in options.items()})
    reader = MergerouterStreamReader(given, 0.0)
    try:
        yield Batches(reader, offset)
    finally:
        reader.stop()


def _comparable(row: Row) -> Row:
    """Return the row without the fields that depend on the time of reading."""
    if row["snapshot"] or row["operationType"] == "snapshotEnd":
        return {**row, "event": None, "wallTime": None}
    return row
