"""Which collections a current table must read again, because their documents came without events.

A rename brings documents that the stream may never have shown: the source was outside of the scope,
or it was a copy that `convertToCapped` makes without events. A drop may be that of `movePrimary`,
which copies a collection to another shard without events and then drops the first copy. So a
collection is read again after its name was dropped, or was given to another collection.

The rule needs nothing but the events of a batch and the state before it, so that a batch that is
repeated decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_sink.folders import open_folder
from spark_sink.tables.ddl_events import SNAPSHOT_END, DdlEvent
from spark_sink.tables.delta_log import DeltaLog
from spark_sink.tables.table_form import TableForm

Covers = Callable[[str, str], bool]
"""Whether the documents of a collection, by database and name, are to be in the table."""

Place = tuple[str, str]
Unread = Mapping[Place, str]
"""The token from which on the table lacks documents of a collection, by database and name."""


def unread_after(unread: Unread, events: Iterable[DdlEvent], covers: Covers) -> dict[Place, str]:
    """Return what is unread after events, sorted by token, of the collections that `covers` knows.

    The end of a snapshot removes the collections that it has read since their token.
    """
    found = dict(unread)
    for event in events:
        here = (event.database or "", event.collection or "")
        if event.kind == SNAPSHOT_END:
            ended = [
                each
                for each, token in found.items()
                if token < event.token and (not event.collections or each in event.collections)
            ]
        elif event.kind == "dropDatabase":
            ended = [each for each in found if each[0] == event.database]
        else:
            ended = [here]
        for each in ended:
            found.pop(each, None)
        if event.kind == "rename":
            here = (event.to_database or "", event.to_collection or "")
        if event.kind in ("drop", "rename"):
            found[here] = event.token
    return {place: token for place, token in found.items() if covers(*place)}


def targets_of(events: Iterable[DdlEvent]) -> list[Place]:
    """Return the names that renames give to collections."""
    return [
        (event.to_database or "", event.to_collection or "")
        for event in events
        if event.kind == "rename"
    ]


def unread_document(unread: Unread) -> list[list[str]]:
    """Return what is unread as part of a commit's position."""
    return [[*place, token] for place, token in sorted(unread.items())]


def unread_in(position: Mapping[str, Any]) -> Unread:
    """Return what is unread by the position of a commit; empty if it does not say."""
    return {(database, name): token for database, name, token in position.get("unread", ())}


def places_in(target: str) -> set[tuple[str, str]]:
    """Return the collections of which a table has documents, by database and name."""
    found: set[tuple[str, str]] = set()
    files, folder = open_folder(target)
    log = DeltaLog(target)
    if not log.exists:
        return found
    form = TableForm.of(log.schema)
    names = [form.column(name) for name in ("database", "collection")]
    for action in log.actions():
        with files.open_input_file(f"{folder}/{action['path']}") as stream:
            for batch in pq.ParquetFile(stream).iter_batches(columns=names):
                rows = pa.Table.from_batches([batch]).group_by(names).aggregate([])
                found |= {(row[names[0]], row[names[1]]) for row in rows.to_pylist()}
    return found
