"""Slices of a current table, compared with the documents of the version's cluster time.

Rows are read by their places through pyarrow, without Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bson.timestamp import Timestamp

from shard_client.bson.resume_token import high_water_mark
from shard_client.bson.values import DOCUMENT
from spark_sink.events.positions import after
from spark_sink.events.slices import fields_of
from spark_sink.folders import open_folder
from spark_sink.options.stream_options import StreamOptions
from spark_sink.snapshot.plan import Chunk, Collection, filter_of
from spark_sink.snapshot.reader import SnapshotTask
from spark_sink.source.offsets import Offset
from spark_sink.source.tasks import chunk_task, read_task
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.fold import DELETED
from spark_sink.tables.key_ranges import KEY_COLUMNS, KeyRanges, places_of
from spark_sink.tables.prepare import Prepare
from spark_sink.tables.table_form import TableForm
from spark_sink.verification.collections import DOUBLED, difference_of

PLACE = "place"
"""The column that says where a row lies in the order of the table."""
_COLUMNS = (*KEY_COLUMNS, "token", "document")
_TEXT, _TYPES = pa.string(), {"document": pa.binary()}


class VersionRows:
    """The newest version of the table at an address. Methods raise OSError for deleted files.

    Raises StreamError if the table cannot be read.
    """

    def __init__(self, address: str) -> None:
        log = DeltaLog(address)
        self.number = log.version
        """The number of the version; None if there is no table."""
        self.position: Mapping[str, Any] = log.position() if log.exists else {}
        """What its commit says."""
        self.time = Timestamp(0, 0)
        """The cluster time that it stands for, of a `newest_version`."""
        self._form = TableForm.of(log.schema) if log.exists else TableForm()
        self._paths = KeyRanges.of(log.files(), self._form.column, is_whole=True).files()
        self._files, self._folder = open_folder(address)

    def behind(self, place: str, count: int) -> pa.Table:
        """Return the rows at the next `count` places behind a place, in order.

        Files of other writers may share a range, and be in any order. Columns: KEY_COLUMNS, token,
        document, PLACE.
        """
        upper, found = "", pa.chunked_array([], pa.string())
        for first, last, path in self._paths:
            if len(found) and first > upper:
                break
            if last <= place:
                continue
            for keys, _ in self._groups(path):
                places = keys[PLACE].filter(pc.greater(keys[PLACE], place))
                found = pa.chunked_array([*found.chunks, *places.chunks], found.type)
            upper = max(upper, last)
        ordered = pc.unique(found).sort()
        return self.find(ordered[:count].to_pylist()).sort_by(PLACE)

    def find(self, places: Iterable[str], *, keys_only: bool = False) -> pa.Table:
        """Return the rows at some places; with `keys_only` their places alone."""
        chosen_places = sorted(places)
        wanted = pa.array(chosen_places, pa.string())
        columns = KEY_COLUMNS if keys_only else _COLUMNS
        found = []
        for first, last, path in self._paths:
            at = bisect_left(chosen_places, first)
            if at == len(chosen_places) or chosen_places[at] > last:
                continue
            for keys, read in self._groups(path):
                chosen = pc.is_in(keys[PLACE], value_set=wanted)
                if pc.any(chosen).as_py():
                    found.append((keys if keys_only else read(columns)).filter(chosen))
        if found:
            return pa.concat_tables(found)
        return pa.table({name: pa.array([], pa.string()) for name in (*columns, PLACE)})

    def _groups(self, path: str) -> Iterator[tuple[pa.Table, Callable[[Sequence[str]], pa.Table]]]:
        """Return the keys of each row group of a file, and what reads its other columns."""
        with self._files.open_input_file(f"{self._folder}/{path}") as stream:
            file = pq.ParquetFile(stream)
            for number in range(file.num_row_groups):
                read = partial(self._read, file, number)
                yield read(KEY_COLUMNS), read

    def _read(self, file: pq.ParquetFile, number: int, names: Sequence[str]) -> pa.Table:
        """Return columns of a row group, and PLACE, without the rows of deleted documents."""
        marks = [DELETED] if self._form.keeps_deleted else []
        rows = file.read_row_group(number, columns=[*map(self._form.column, names), *marks])
        if marks:
            rows = rows.filter(pc.invert(rows[DELETED]))
        # Other writers give text and bytes other types of Arrow's.
        rows = pa.table({n: rows[self._form.column(n)].cast(_TYPES.get(n, _TEXT)) for n in names})
        return rows.append_column(PLACE, places_of(rows))


Key = Mapping[str, Any]
"""A document's key: KEY_COLUMNS."""
Difference = dict[str, Any]
"""KEY_COLUMNS, a row of `collections.DIFFERENCES`, and the `token` of the table's row."""


def newest_version(address: str) -> VersionRows | None:
    """Return the newest version; None while a snapshot must complete it. Raises StreamError."""
    rows = VersionRows(address)
    offset = rows.position.get("offset")
    at = Offset.read(offset) if offset else None
    if at is None or at.cut is None or at.running is not None or rows.position.get("unread"):
        return None
    cut = at.cut
    rows.time = Timestamp(cut.time, cut.inc - 1) if cut.inc else Timestamp(cut.time - 1, 2**32 - 1)
    return rows


class Comparison:
    """Compares slices of a table with the documents that the options select.

    `pace` is called with the number of documents that were read. Methods raise StreamError and
    OSError.
    """

    def __init__(self, options: StreamOptions, pace: Callable[[int], None]) -> None:
        self._options = options
        self._pace = pace

    def differences(
        self, version: VersionRows, keys: pa.Table, rows: pa.Table
    ) -> dict[str, Difference]:
        """Return how rows of a version differ from the documents with some keys, by place.

        `rows` are all rows with these keys.
        """
        newest = high_water_mark(after(version.time).time)
        stored = {place_of(row): row for row in rows.to_pylist()}
        times = Counter(rows[PLACE].to_pylist())
        accepts = self._options.scope.accepts
        named = keys.select(list(KEY_COLUMNS)).to_pylist()
        wanted = [each for each in named if accepts(each["database"], each["collection"])]
        documents = self._documents_of(version.time, wanted)
        found = {}
        for each in wanted:
            place = place_of(each)
            row = stored.get(place)
            name = f"{each['database']}.{each['collection']}"
            if row is not None and times[place] > 1:
                told = {"namespace": name, "difference": DOUBLED, "fields": []}
                found[place] = {**each, **told, "token": row["token"]}
                continue
            if row is not None and row["token"] > newest:
                continue  # a snapshot has read it at a later time
            table, collection = None if row is None else row["document"], documents.get(place)
            if table == collection:
                continue
            pair = {"namespace": name, "key": each["key"], "table": table, "collection": collection}
            difference = difference_of(pair)
            if difference is not None:
                token = None if row is None else row["token"]
                found[place] = {**each, **difference, "token": token}
        return found

    def missing(self, version: VersionRows, chunk: Chunk) -> tuple[dict[str, Key], int]:
        """Return the keys of a chunk that a version lacks, by place, and how many keys it has."""
        task = chunk_task(chunk, version.time, self._options)
        keys = {place_of(row): row for row in self._read(replace(task, keys_only=True))}
        present = set(version.find(keys.keys(), keys_only=True)[PLACE].to_pylist())
        return {place: row for place, row in keys.items() if place not in present}, len(keys)

    def _documents_of(self, time: Timestamp, keys: Iterable[Key]) -> dict[str, bytes]:
        by_collection: dict[tuple[str, str], list[str]] = {}
        for each in keys:
            by_collection.setdefault((each["database"], each["collection"]), []).append(each["key"])
        found = {}
        for names, texts in by_collection.items():
            task = chunk_task(Chunk(Collection(*names)), time, self._options)
            chosen = filter_of(texts)
            condition = {"$and": [chosen, task.condition]} if task.condition else chosen
            for row in self._read(replace(task, condition=condition)):
                full = fields_of(row["payload"]).get(b"fullDocument")
                if full is not None and full.kind == DOCUMENT:
                    found[place_of(row)] = full.value
        return found

    def _read(self, task: SnapshotTask) -> Iterable[dict[str, Any]]:
        """Return documents as rows of PREPARED, read at the task's time exactly."""
        prepare = Prepare(("_id",), ())
        for batch in read_task(replace(task, exact=True), self._options):
            rows = batch.select(["database", "collection", "token", "event"])
            for prepared in prepare.events([rows]):
                yield from prepared.to_pylist()
            self._pace(batch.num_rows)


def place_of(row: Key) -> str:
    """Return the place of a key."""
    return "\0".join(row[name] for name in KEY_COLUMNS)
