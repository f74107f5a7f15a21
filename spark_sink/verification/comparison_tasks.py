"""The tasks of a comparison: they find suspects, and read both sides of these.

A table and its collections may change meanwhile. So keys whose rows and documents differ are only
suspects, which `collection_comparison` compares again. Executors import this module.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import zip_longest
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from bson.timestamp import Timestamp
from pyspark.sql.types import StructType

from spark_sink.errors import StreamError
from spark_sink.events.slices import UNREADABLE, fields_of
from spark_sink.options.stream_options import StreamOptions
from spark_sink.rows.arrow_types import arrow_schema, batch_of
from spark_sink.rows.row_schema import columns
from spark_sink.snapshot.plan import Chunk, SnapshotCollection, filter_of
from spark_sink.snapshot.reader import ChunkRead
from spark_sink.source.task_rows import chunk_read, read_chunks
from spark_sink.stream.router_client import RouterClient
from spark_sink.tables.executors import MadeRows
from spark_sink.tables.fold import BASE, TABLE
from spark_sink.tables.key_ranges import KeyRanges
from spark_sink.tables.keyed_rows import DELETED, INAPPLICABLE, KeyedRows, problem_of
from spark_sink.tables.parquet_parts import TableScan
from spark_sink.tables.places import KEY_COLUMNS, places_of
from spark_sink.tables.table_form import TableForm
from spark_sink.verification.differences import differing_fields

SUSPECTS = StructType(columns("place string, id string, doubled boolean, rows long, last string"))
"""A place to compare again, with the `_id` of its document as canonical extended JSON, or one that
the table has several times. A row without a place is the report of a task: the number of rows or
keys that it has compared, and the last place."""
ROWS = StructType([TABLE[name] for name in BASE])
"""Rows of a current table, with the columns BASE."""
DOCUMENTS = StructType(columns("database string, collection string, token string, event binary"))
"""Documents as rows of the source."""

_SUSPECTS, _ROWS = map(arrow_schema, (SUSPECTS, ROWS))
_PLACE = "place"
# The most documents of one read, which are in memory.
_KEYS = 1_000
_EMPTY = {"document": b"\x05\0\0\0\0"}


@dataclass(frozen=True)
class ComparisonTasks:
    """The tasks for one version of a table; each method but `tasks_after` is one.

    `compare_rows` and `compare_keys` find suspects, `table_rows` and `documents` read the two sides
    of these. They raise StreamError, and OSError if a file of the version was deleted.

    Args:
        address: the table's.
        form: its columns.
        keys: the fields that identify a document.
        files: the first and the last possible place of each file, and its path.
        options: of the source, with documents=raw.
        time: the cluster time at which, or after which, documents are read.
    """

    address: str
    form: TableForm
    keys: tuple[str, ...]
    files: Sequence[tuple[str, str, str]]
    options: StreamOptions
    time: Timestamp

    def tasks_after(
        self, ranges: KeyRanges, place: str, most: int
    ) -> tuple[str, list[Callable[[], MadeRows]]]:
        """Return tasks for the next rows after a place, and the last place of their ranges.

        They have about `most` rows. `ranges` are those of the files. A range with more rows, or
        with an unknown number, is compared alone and in parts.
        """
        tasks, room, reached = list[Callable[[], MadeRows]](), most, place
        small = replace(self, files=())  # which these tasks do not need
        for index in range(ranges.index(place), len(ranges)):
            key_range = ranges[index]
            if not key_range.paths or key_range.last <= place:
                continue
            size = most + 1 if key_range.rows is None else key_range.rows
            if tasks and size > room:
                break
            tasks.append(
                partial(small.compare_rows, key_range.paths, place, most if size > most else None)
            )
            room, reached = room - size, key_range.last
        return reached, tasks

    def compare_rows(self, paths: Sequence[str], after: str, most: int | None) -> MadeRows:
        """Compare the rows of files after a place: SUSPECTS.

        The files have all rows of their range, in any order. The first `most` rows in the order of
        places are compared; None for all rows.
        """
        every = [rows[_PLACE] for rows in self._scan(paths, KEY_COLUMNS, deleted=True)]
        places = pa.chunked_array([part for column in every for part in column.chunks], pa.string())
        counts = pa.Table.from_batches([pa.RecordBatch.from_struct_array(pc.value_counts(places))])
        counts = counts.filter(pc.greater(counts["values"], after)).sort_by("values").slice(0, most)
        if not counts.num_rows:
            yield _report(0)
            return
        doubled = counts["values"].filter(pc.greater(counts["counts"], 1)).to_pylist()
        yield _suspects((place, None, True) for place in doubled)
        last = counts["values"][-1]
        with closing(RouterClient(self.options)) as client:
            for read in self._scan(paths, BASE, self._between(after, last.as_py())):
                keys = read[_PLACE]
                rows = read.filter(pc.and_(pc.greater(keys, after), pc.less_equal(keys, last)))
                for start in range(0, rows.num_rows, _KEYS):
                    part = rows.slice(start, _KEYS).to_pylist()
                    yield _suspects(self._suspects_in(client, part))
        yield _report(counts.num_rows, last.as_py())

    def compare_keys(self, chunk: Chunk) -> MadeRows:
        """Look for the keys of a chunk of a collection in the table: SUSPECTS."""
        rows = 0
        read = chunk_read(chunk, self.time, self.options, keys_only=True)
        with closing(RouterClient(self.options)) as client:
            for batch in read_chunks(client, [read], self.options):
                keys = {row[_PLACE]: row for row in self._keyed(batch)}
                batches = self._find(keys, KEY_COLUMNS)
                present = {place for batch in batches for place in batch[_PLACE].to_pylist()}
                missing = [(place, row) for place, row in keys.items() if place not in present]
                yield _suspects((place, self._id_of(row), False) for place, row in missing)
                rows += batch.num_rows
        yield _report(rows)

    def table_rows(self, batches: Iterable[pa.RecordBatch]) -> MadeRows:
        """Return the table's rows with some keys as ROWS: a function for `mapInArrow`."""
        for batch in batches:
            for rows in self._find({*batch[_PLACE].to_pylist()}, BASE):
                yield from rows.select(_ROWS.names).cast(_ROWS).to_batches()

    def documents(self, batches: Iterable[pa.RecordBatch]) -> MadeRows:
        """Return the documents with some keys as DOCUMENTS: a function for `mapInArrow`."""
        with closing(RouterClient(self.options)) as client:
            for batch in batches:
                reads = self._reads_of(batch.to_pylist())
                for documents in read_chunks(client, reads, self.options):
                    yield documents.select(DOCUMENTS.names)

    def _find(self, places: Collection[str], names: Sequence[str]) -> Iterator[pa.Table]:
        """Return columns, and _PLACE, of the rows at some places."""
        ordered, paths = sorted(places), []
        for first, last, path in self.files:
            index = bisect_left(ordered, first)
            if index < len(ordered) and ordered[index] <= last:
                paths.append(path)
        key, wanted = pc.field(self.form.column("key")), pa.array(ordered, pa.string())
        keys = pa.array({place.rpartition("\0")[2] for place in ordered}, pa.string())
        for rows in self._scan(paths, names, key.isin(keys) | key.is_null()):
            yield rows.filter(pc.is_in(rows[_PLACE], value_set=wanted))

    def _between(self, after: str, last: str) -> pc.Expression:
        """Return a condition that all rows after a place, up to a last one, fulfil.

        It excludes row groups by their statistics.
        """
        fields = [pc.field(self.form.column(name)) for name in KEY_COLUMNS]
        bounds = zip_longest(fields, after.split("\0"), last.split("\0"), fillvalue="")
        is_after, is_before = pc.scalar(False), pc.scalar(True)  # of equal names and keys
        for field, begin, end in reversed([*bounds]):
            is_after = (field > begin) | ((field == begin) & is_after)
            is_before = (field < end) | ((field == end) & is_before)
        return (is_after & is_before) | reduce(or_, (field.is_null() for field in fields))

    def _scan(
        self,
        paths: Sequence[str],
        names: Sequence[str],
        chosen: pc.Expression | None = None,
        *,
        deleted: bool = False,
    ) -> Iterator[pa.Table]:
        """Return columns, and _PLACE, of rows of files; with `deleted` also of deleted documents.

        A cell that another program has emptied is an empty value.
        """
        if self.form.keeps_deleted and not deleted:
            is_live = ~pc.field(DELETED)
            chosen = is_live if chosen is None else chosen & is_live
        chosen_columns = [*map(self.form.column, names)]
        files = [(path, dict[str, Any]()) for path in paths]
        for batch in TableScan(self.address, self.form.file_schema, chosen_columns, files, chosen):
            columns = dict(zip(names, batch.columns, strict=True))
            for name in columns.keys() - {"documentKey"}:
                columns[name] = pc.fill_null(columns[name], _EMPTY.get(name, ""))
            rows = pa.table(columns)
            yield rows.append_column(_PLACE, places_of(rows))

    def _suspects_in(
        self, client: RouterClient, rows: list[dict[str, Any]]
    ) -> Iterator[tuple[Any, ...]]:
        """Return the SUSPECTS among rows."""
        accepts, documents = self.options.scope.accepts, dict[str, bytes]()
        rows = [
            {**row, "id": self._id_of(row)}
            for row in rows
            if accepts(row["database"], row["collection"])
        ]
        for batch in read_chunks(client, self._reads_of(rows), self.options):
            for change in self._keyed(batch):
                documents[change[_PLACE]] = fields_of(change["payload"])[b"fullDocument"].value
        for row in rows:
            stored, document = row["document"], documents.get(row[_PLACE])
            alike = stored == document or (document and not differing_fields(stored, document))
            if not alike or not row["token"]:
                yield row[_PLACE], row["id"], False

    def _reads_of(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[ChunkRead]:
        """Return what reads the documents with the places and `id`s of rows."""
        by_collection: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            database, collection, _ = row[_PLACE].split("\0")
            ids = by_collection.setdefault((database, collection), [])
            ids += [row["id"]] if row["id"] else []
        key = () if self.keys == ("_id",) else self.keys
        for names, ids in by_collection.items():
            chunk = Chunk(SnapshotCollection(*names, key=key))
            for start in range(0, len(ids), _KEYS):
                chosen = filter_of(ids[start : start + _KEYS])
                yield chunk_read(chunk, self.time, self.options, chosen)

    def _keyed(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return rows of the source as rows of KEYED."""
        [keyed] = KeyedRows(self.keys, ()).events([batch.select(DOCUMENTS.names)])
        rows: list[dict[str, Any]] = keyed.to_pylist()
        for row in rows:
            if row["kind"] == INAPPLICABLE:
                raise StreamError(problem_of(fields_of(row["payload"]).get(b"documentKey")))
        return rows

    def _id_of(self, row: Mapping[str, Any]) -> str | None:
        """Return the `_id` of a row as extended JSON; None if another program has damaged it."""
        with suppress(*UNREADABLE):
            key = str(row[_PLACE].rpartition("\0")[2])
            if self.keys != ("_id",):
                key = json.dumps(json.loads(row["documentKey"])["_id"])
            filter_of([key])
            return key
        return None


def _suspects(keys: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    return batch_of(((*key, 0, None) for key in keys), _SUSPECTS)


def _report(rows: int, place: str | None = None) -> pa.RecordBatch:
    return batch_of([(None, None, False, rows, place)], _SUSPECTS)
