"""Compares rows of a current table with documents, as of the cluster time of a version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from bson import json_util
from bson.timestamp import Timestamp

from spark_sink.events.positions import Token, after, high_water_mark, time_of
from spark_sink.events.slices import DOCUMENT, fields_of
from spark_sink.jobs.status import offset_position
from spark_sink.options.stream_options import StreamOptions
from spark_sink.snapshot.plan import Chunk, Collection
from spark_sink.snapshot.reader import SnapshotTask
from spark_sink.source.tasks import chunk_task, read_task
from spark_sink.tables.fold import Prepare
from spark_sink.tables.key_ranges import KEY_COLUMNS
from spark_sink.tables.verify import difference_of
from spark_sink.tables.version_rows import PLACE, VersionRows

Key = Mapping[str, Any]
"""A document's key: KEY_COLUMNS."""
Difference = dict[str, Any]
"""KEY_COLUMNS, a row of `tables.verify.DIFFERENCES`, and the `token` of the table's row."""


@dataclass(frozen=True)
class TableVersion:
    """A version of the table, and the cluster time that it stands for."""

    rows: VersionRows
    time: Timestamp


def newest_version(address: str) -> TableVersion | None:
    """Return the newest version; None while a snapshot must complete it. Raises StreamError."""
    rows = VersionRows(address)
    offset = rows.position.get("offset", {})
    position = offset_position(offset)
    time = None if position is None else time_of(position)
    plan = offset.get("snapshot")
    lacks_documents = rows.position.get("unread") or (plan is not None and not plan.get("ended"))
    if time is None or lacks_documents:
        return None
    if isinstance(position, Token) and not position.is_high_water_mark:
        return TableVersion(rows, time)
    tick = Timestamp(time.time, time.inc - 1) if time.inc else Timestamp(time.time - 1, 2**32 - 1)
    return TableVersion(rows, tick)


class Comparison:
    """Compares slices of a table with the documents that the options select.

    `pace` is called with the number of documents that were read. Methods raise StreamError and
    OSError.
    """

    def __init__(self, options: StreamOptions, pace: Callable[[int], None]) -> None:
        self._options = options
        self._pace = pace

    def differences(
        self, version: TableVersion, keys: pa.Table, rows: pa.Table
    ) -> dict[str, Difference]:
        """Return how rows of a version differ from the documents with some keys, by place."""
        newest = high_water_mark(after(version.time).time)
        stored = {place_of(row): row for row in rows.to_pylist()}
        accepts = self._options.scope.accepts
        named = keys.select(list(KEY_COLUMNS)).to_pylist()
        wanted = [each for each in named if accepts(each["database"], each["collection"])]
        documents = self._documents_of(version.time, wanted)
        found = {}
        for each in wanted:
            place = place_of(each)
            row = stored.get(place)
            if row is not None and row["token"] > newest:
                continue  # a snapshot has read it at a later time
            table, collection = None if row is None else row["document"], documents.get(place)
            if table == collection:
                continue
            name = f"{each['database']}.{each['collection']}"
            pair = {"namespace": name, "key": each["key"], "table": table, "collection": collection}
            difference = difference_of(pair)
            if difference is not None:
                token = None if row is None else row["token"]
                found[place] = {**each, **difference, "token": token}
        return found

    def missing(self, version: TableVersion, chunk: Chunk) -> tuple[dict[str, Key], int]:
        """Return the keys of a chunk that a version lacks, by place, and how many keys it has."""
        task = chunk_task(chunk, version.time, self._options)
        keys = {place_of(row): row for row in self._read(replace(task, keys_only=True))}
        present = set(version.rows.find(keys.keys(), keys_only=True)[PLACE].to_pylist())
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


def filter_of(keys: Iterable[str]) -> dict[str, Any]:
    """Return the filter for documents whose `_id`s are given as canonical extended JSON."""
    text = f'{{"_id": {{"$in": [{",".join(keys)}]}}}}'
    found: dict[str, Any] = json_util.loads(text, json_options=json_util.CANONICAL_JSON_OPTIONS)
    return found
