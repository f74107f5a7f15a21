"""Runs a stream reader as Spark does, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_sink.options.stream_options import parse_options
from spark_sink.source.stream_reader import MergerouterStreamReader
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
